"""Tasks by which models are judged: their table, examples and sources, prompts, checks."""
