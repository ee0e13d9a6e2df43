"""Fine-tuning of a pretrained checkpoint: input formats, heads, training, results; and linear baselines."""
