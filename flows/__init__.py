"""When things happen: Prefect runs the graph that DVC describes, MLflow's registry keeps the outcome."""
