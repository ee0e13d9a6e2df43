"""Hides the package from stages: users do not have it, and `evaluate` imports it, for seconds, if it is found."""

raise ImportError("transformers is for tests and benchmarks; stages run without it")
