"""One thin adapter a stage, run as `python -m tasks.<stage>`: parameters and paths in, files and metrics out."""
