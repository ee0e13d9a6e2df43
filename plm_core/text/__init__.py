"""From documents to batches: special tokens, tokenizer, token store, views."""
