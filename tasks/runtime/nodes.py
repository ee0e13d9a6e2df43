"""Requests for other nodes of a cluster, which the flow provides (``flows/placement.py``). Used by stages."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from plm_core.files import atomic_text

HELP = "PLM_HELP"
"""The variable that names the file for the request; not set if there are no other nodes."""


def nodes_given() -> int:
    """The number of nodes that the stage may use, including this one."""
    return int(os.environ.get("PLM_NODES", "1")) if HELP in os.environ else 1


def ask_for_help(command: Sequence[str]) -> None:
    """Have each of the other nodes run a command until the stage ends."""
    if (path := os.environ.get(HELP)) is not None:
        atomic_text(Path(path), json.dumps(list(command)))
