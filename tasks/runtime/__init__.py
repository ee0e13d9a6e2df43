"""What every stage runs in: the provenance guard, signals, processes, progress, exit statuses, errors."""
