"""Limits of the machine, from the environment: facts about the machine are not parameters. Read by tasks."""

import math
import os
import sys

from plm_core.config import UserError
from plm_core.shared import limits


def leads() -> bool:
    """Whether this process is the first of those that train together, which alone writes files and prints."""
    return os.environ.get("RANK", "0") == "0"


def pretraining_gpus() -> int:
    """How many GPUs a pretraining run may use: ``PLM_RANKS`` or ``PLM_GPUS``, otherwise all."""
    given = (limits.number("PLM_RANKS", "processes"), limits.number("PLM_GPUS", "GPUs"))
    return min((most for most in given if most), default=sys.maxsize)


def budget() -> float | None:
    """What a training run may cost before it stops, its state saved: ``PLM_BUDGET``, in the currency of ``price``.

    Raises:
        UserError: it is not a number above 0, or there is no price.
    """
    value = os.environ.get("PLM_BUDGET")
    if value is None:
        return None
    found = _number(value)
    if not 0 < found < math.inf:
        raise UserError(f"PLM_BUDGET: found {value!r}; expected a number above 0, such as 50")
    if not price():
        raise UserError(f"PLM_BUDGET: {value}, but the price of an hour is not set; expected PLM_PRICE_PER_HOUR too")
    return found


def price() -> float | None:
    """The price of an hour of this machine, in any currency: ``PLM_PRICE_PER_HOUR``; None if it is not set.

    Raises:
        UserError: it is not a number from 0 upwards.
    """
    value = os.environ.get("PLM_PRICE_PER_HOUR")
    if value is None:
        return None
    found = _number(value)
    if not 0 <= found < math.inf:
        raise UserError(f"PLM_PRICE_PER_HOUR: found {value!r}; expected a number from 0 upwards, such as 2.49")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
