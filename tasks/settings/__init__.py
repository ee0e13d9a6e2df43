"""What stages are told: parameters, paths, and what the machine's environment says."""
