"""What flows, tasks and the core have agreed on, each thing once. Needs the standard library, and NVML for GPUs."""
