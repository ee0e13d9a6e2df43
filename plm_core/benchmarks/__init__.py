"""Tasks by which models are judged: their table, examples and sources, minimal pairs, prompts and shots, checks."""
