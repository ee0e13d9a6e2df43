"""From documents to batches: tokenizers, the token store, and views of it (windows, streams, pairs, packed rows)."""
