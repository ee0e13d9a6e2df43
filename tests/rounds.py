"""How often a fault is injected: a few times in the slow tests, many times in `make prove`."""

import pytest


def few(times):
    """So often in the slow tests."""
    return pytest.param(times, marks=pytest.mark.slow)


def many(times):
    """So often in `make prove`."""
    return pytest.param(times, marks=pytest.mark.proof)
