"""Evaluation: likelihoods, scores of task answers, few-shot prompts, significance tests, the promotion gate."""
