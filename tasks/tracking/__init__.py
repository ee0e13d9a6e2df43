"""Runs on their way to MLflow: the client that stages use, the publisher that sends them."""
