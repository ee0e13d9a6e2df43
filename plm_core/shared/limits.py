"""How many cores there are, and how long those who end a process wait for it."""

import os

SAVING_S = 600
"""How long a stage that was told to end may take to save its state before it is killed: whoever started those who end
it must wait longer."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
