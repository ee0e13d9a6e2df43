"""Tasks by which models are judged: the table of them, their examples and where these come from, prompts, checks."""
