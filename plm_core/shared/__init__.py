"""Definitions that flows, tasks and the core share. Needs only the standard library, and NVML for GPUs."""
