"""What every stage runs in: the guard of provenance, signals, processes, progress, how it ends."""
