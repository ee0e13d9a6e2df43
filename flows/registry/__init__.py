"""The models in MLflow's registry: how a checkpoint becomes a version, is judged, and becomes the champion."""
