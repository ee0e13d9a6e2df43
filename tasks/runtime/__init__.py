"""The environment of every stage: the provenance guard, signals, processes, progress, exit statuses."""
