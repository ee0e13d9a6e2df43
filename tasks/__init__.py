"""Thin adapters, one per stage or command: parameters and paths in, files and metrics out."""
