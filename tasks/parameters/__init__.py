"""What stages are given: sections of params.yaml, edits of them, and limits from the environment."""
