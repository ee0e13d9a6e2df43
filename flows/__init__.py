"""Orchestration: Prefect runs the graph that DVC describes, and MLflow's registry keeps the outcome."""
