"""The section ``sweep`` of ``params.yaml``: what is searched, by which metric, for how long. Used by ``sweep.py``."""

import math
import os
import re
from typing import Annotated, Literal

from pydantic import Field

from flows.outcome import UserError
from flows.settings import Name
from plm_core import config
from plm_core.shared.paths import METRICS

Number = int | float
Value = bool | Number | str
Above0 = Annotated[float, Field(gt=0)]


@config.section
class Range:
    """The numbers between two bounds; whole numbers if both bounds are."""

    low: Number
    """The smallest."""
    high: Number
    """The largest."""
    log: bool = False
    """Whether the scale is logarithmic: for rates, and for sizes that grow by factors."""

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
    """The range or the list of values of each dotted parameter. A model with several layers and heads, for example:
    ``pretrain.gpt.model.layers: {low: 1, high: 4}``, ``pretrain.gpt.model.heads: [2, 4]``."""
    trials: Annotated[int, Field(ge=1)]
    """The maximum number of trials, in all calls of the command together."""
    minutes: Above0 | None = None
    """The wall-clock time for the trials, in all calls together; trials that run at the end keep their state, and
    resume when there is more time. null: no limit but the number of trials."""
    cost: Above0 | None = None
    """The same in money, at the price of an hour of this machine in ``PLM_PRICE_PER_HOUR``."""
    prune: bool = True
    """Whether to end a trial early if a validation is worse than the median of the other trials at this step: for
    metrics that a training run reports, ``valid_loss`` and ``valid_score``."""
    seed: int = 0
    """The seed of the search. With one trial at a time, the same seed tries the same values."""

    def __post_init__(self) -> None:
        # What would otherwise fail in the first trial.
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
        """The name of the number in that file."""
        return self.metric.partition("/")[2]

    @property
    def searched(self) -> str:
        """The digest of everything that trials must share to be comparable."""
        # Not trials, minutes and the like: a sweep may get more of them.
        return config.digest(self.metric, self.direction, {name: str(values) for name, values in self.space.items()})

    def seconds(self) -> float:
        """The wall-clock seconds for all trials together. Raises UserError: there is a cost, but no price."""
        # One clock for both: money is time at the machine's price.
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
