"""The process that brings the records of runs to MLflow, for all stages and pipelines of a checkout."""
