"""Limits from the environment (GPUs, budget, price): facts about a machine are not parameters."""

import math
import os
import sys
from collections.abc import Callable

from plm_core.config import UserError
from plm_core.shared import environment


def leads() -> bool:
    """Whether this process is the first of those that train together, which alone writes files and prints."""
    return os.environ.get("RANK", "0") == "0"


def pretraining_gpus() -> int:
    """How many GPUs a pretraining run may use: ``PLM_RANKS`` or ``PLM_GPUS``, otherwise all."""
    given = (
        environment.number_from_environment("PLM_RANKS", "processes"),
        environment.number_from_environment("PLM_GPUS", "GPUs"),
    )
    return min((most for most in given if most), default=sys.maxsize)


def budget() -> float | None:
    """What a training run may cost before it stops, its state saved: ``PLM_BUDGET``, in the currency of ``price``.

    Raises:
        UserError: it is not a number above 0, or there is no price.
    """
    amount = _amount("PLM_BUDGET", lambda number: number > 0, "a number above 0, such as 50")
    if amount is not None and not price():
        raise UserError(f"PLM_BUDGET: {amount:g}, but the price of an hour is not set; expected PLM_PRICE_PER_HOUR too")
    return amount


def price() -> float | None:
    """The price of an hour of this machine, in any currency: ``PLM_PRICE_PER_HOUR``; None if it is not set. Raises
    UserError: it is not a number of at least 0."""
    return _amount("PLM_PRICE_PER_HOUR", lambda number: number >= 0, "a number of at least 0, such as 2.49")


def _amount(name: str, valid: Callable[[float], bool], expected: str) -> float | None:
    if (value := os.environ.get(name)) is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not valid(number):
        raise UserError(f"{name}: found {value!r}; expected {expected}")
    return number
