"""Other nodes of a cluster, as a stage asks for them; the flow brings them (``flows/helpers.py``). Used by stages."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from plm_core.files import atomic_text

HELP = "PLM_HELP"
"""The variable that names the file in which help is asked for; it is not set where there is none."""


def nodes_given() -> int:
    """On how many nodes the stage may work, this one included."""
    return int(os.environ.get("PLM_NODES", "1")) if HELP in os.environ else 1


def ask_for_help(command: Sequence[str]) -> None:
    """Have each of the other nodes run a command until the stage ends."""
    if (path := os.environ.get(HELP)) is not None:
        atomic_text(Path(path), json.dumps(list(command)))
