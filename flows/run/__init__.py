"""A run of the graph, from `plm run` or a deployment to its result. Used by the command, schedules and sweeps."""
