"""From sources to a corpus: reading, quarantine, cleaning, masking, duplicates, contamination, splits, mixtures."""
