"""Fine-tuning: input formats, the classifier, heads (rows, loss and answers by kind of task), results, baselines."""
