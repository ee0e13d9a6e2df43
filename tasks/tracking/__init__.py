"""Runs on their way to MLflow: the client that stages use, journals on disk, the recorder that sends them."""
