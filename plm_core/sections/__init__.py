"""Sections of the parameters as dataclasses that import nothing heavy: they are checked before anything runs."""
