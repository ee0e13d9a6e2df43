"""Definitions that flows, tasks and the core share. Needs only Python, YAML for the parameters, and NVML for GPUs."""
