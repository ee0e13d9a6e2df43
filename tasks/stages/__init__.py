"""The stages of ``dvc.yaml``, one file per stage, run as ``python -m tasks.stages.NAME``."""
