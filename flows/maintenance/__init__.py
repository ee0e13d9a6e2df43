"""Keeps a checkout and its stores in order: `plm doctor`, `plm gc`, `plm backup`. One `*_checks.py` per store."""
