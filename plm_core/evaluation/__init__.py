"""Evaluation: likelihoods, task scores, few-shot prompts, significance tests, the promotion gate."""
