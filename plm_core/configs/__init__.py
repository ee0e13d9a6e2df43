"""Sections of the parameters as dataclasses without heavy imports, so that they are checked before anything runs."""
