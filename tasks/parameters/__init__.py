"""The settings of stages: parameters, tags, and the machine's environment."""
