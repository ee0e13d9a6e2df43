"""What keeps a checkout and its stores in order: `plm doctor`, `plm gc`, `plm backup`. One file of checks per store."""
