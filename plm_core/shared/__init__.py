"""What flows, tasks and the core share: parameters, paths, files, errors, GPU claims. Needs only Python, YAML, NVML."""
