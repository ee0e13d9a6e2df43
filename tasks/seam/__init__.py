"""The seam: what every task shares, parameters, the stage's outcome and MLflow."""
