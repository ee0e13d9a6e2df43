"""What the machine may be used for, from the environment: facts of the machine are no parameters. Read by tasks."""

import math
import os
import re
import sys

from plm_core.config import UserError


def memory() -> str:
    """What sorting and the search for duplicates may take: ``PLM_MEMORY``, such as ``500MB``; by default ``1GB``.

    Raises:
        UserError: it is not a number and a unit.
    """
    value = os.environ.get("PLM_MEMORY", "1GB")
    if not re.fullmatch(r"[1-9][0-9]*(MB|GB)", value):
        raise UserError(f"PLM_MEMORY: found {value!r}; expected a number and MB or GB, such as 500MB")
    return value


def leads() -> bool:
    """Whether this process writes and says what is written and said once: the first of those that train together."""
    return os.environ.get("RANK", "0") == "0"


def pretraining_gpus() -> int:
    """How many GPUs a pretraining may have: what ``PLM_RANKS`` or ``PLM_GPUS`` says, else as many as there are."""
    limits = (os.environ.get(name, "") for name in ("PLM_RANKS", "PLM_GPUS"))
    return max(1, min((int(limit) for limit in limits if limit.isdecimal()), default=sys.maxsize))


def price() -> float | None:
    """What an hour of this machine costs, in whatever currency: ``PLM_PRICE_PER_HOUR``; None when it is not said.

    Raises:
        UserError: it is not a number from 0 upwards.
    """
    value = os.environ.get("PLM_PRICE_PER_HOUR")
    if value is None:
        return None
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise UserError(f"PLM_PRICE_PER_HOUR: found {value!r}; expected a number from 0 upwards, such as 2.49")
    return found
