"""From sources to a cleaned, deduplicated, split corpus of documents."""
