"""Scores: intrinsic likelihoods, classification metrics, the comparison of two models."""
