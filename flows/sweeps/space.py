"""The section ``sweep`` of ``params.yaml``: what is searched, by which number, for how long. Used by ``sweep.py``."""

import math
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flows.outcome import UserError
from flows.settings import Name, read_section
from plm_core import config
from plm_core.shared.paths import METRICS

Number = int | float
Value = bool | Number | str
Above0 = Annotated[float, Field(gt=0)]


@config.section
class Range:
    """The numbers between two; whole ones where both are."""

    low: Number
    """The smallest."""
    high: Number
    """The largest."""
    log: bool = False
    """Whether 1 to 2 is as far as 10 to 20: for rates, and for sizes that grow by factors."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low: {self.low}, high: {self.high}; expected a smaller and a larger number")
        if self.log and self.low <= 0:
            raise ValueError(f"low: {self.low}; expected a number above 0 with log")


@config.section
class Sweep:
    """What ``plm sweep`` searches."""

    metric: Name
    """``FILE/NAME``: a number that a stage writes into ``artifacts/metrics/FILE.json``. Each trial brings this stage up
    to date, with all that it depends on."""
    direction: Literal["lower", "higher"]
    """Which of two values is better."""
    space: dict[str, Range | list[Value]]
    """By dotted parameter: from where to where, or the values that there are. A model of several layers and heads, for
    example: ``pretrain.gpt.model.layers: {low: 1, high: 4}``, ``pretrain.gpt.model.heads: [2, 4]``."""
    trials: Annotated[int, Field(ge=1)]
    """So many at most, in all calls of the command together."""
    minutes: Above0 | None = None
    """How long the trials may take by the clock, in all calls together; those that run then keep their state, and go on
    when there is more time. null: until there are so many trials."""
    cost: Above0 | None = None
    """The same in money, at the price that ``PLM_PRICE_PER_HOUR`` names for an hour of this machine."""
    prune: bool = True
    """Whether a trial is ended early when a validation is worse than the median of the other trials at this step: for
    metrics that a training reports, ``valid_loss`` and ``valid_score``."""
    seed: int = 0
    """Of the search. One trial at a time, it tries the same values again."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/]+/.+", self.metric):
            raise ValueError(f"metric: {self.metric!r}; expected FILE/NAME, such as pretrain-gpt/valid_loss")
        if not self.space:
            raise ValueError("space: empty; expected at least one parameter")
        for name, values in self.space.items():
            if isinstance(values, list) and len(values) < 2:
                raise ValueError(f"space.{name}: {values}; expected at least two values, or low and high")

    @property
    def file(self) -> str:
        """The metrics file, relative to the checkout."""
        return (METRICS / f"{self.metric.partition('/')[0]}.json").as_posix()

    @property
    def name(self) -> str:
        """The name of the number in it."""
        return self.metric.partition("/")[2]

    @property
    def searched(self) -> str:
        """The digest of what makes trials comparable."""
        return config.digest(self.metric, self.direction, {name: str(values) for name, values in self.space.items()})

    def seconds(self) -> float:
        """How long all trials together may take by the clock.

        Raises:
            UserError: there is a cost, and no price.
        """
        limits = [60 * self.minutes] if self.minutes else []
        if self.cost:
            price = os.environ.get("PLM_PRICE_PER_HOUR", "")
            try:
                limits.append(3600 * self.cost / float(price))
            except (ValueError, ZeroDivisionError):
                raise UserError(
                    f"sweep.cost: {self.cost:g}, but PLM_PRICE_PER_HOUR is {price!r}; expected what an hour costs"
                ) from None
        return min(limits, default=math.inf)


def within(value: object, values: Range | list[Value]) -> bool:
    """Whether a value is one of those that are searched."""
    if isinstance(values, list):
        return value in values
    return isinstance(value, int | float) and values.low <= value <= values.high


def read(root: Path) -> Sweep:
    """The section of a checkout. Raises UserError: it is missing or wrong."""
    return read_section(root, Sweep, "sweep")
