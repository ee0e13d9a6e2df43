"""Runs on a schedule: deployment, history, notifications, and the Prefect server."""
