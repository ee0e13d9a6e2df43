"""The processes of stages: how they start and end, on which share of this machine or on which node of a cluster."""
