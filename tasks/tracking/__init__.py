"""What a stage records of its run, and where MLflow keeps it. Flows read the same records and open the same stores."""
