"""The section ``sweep`` of ``params.yaml``, and what a sweep has tried and tries next. Used by ``sweep.py``.

Optuna's study is a database next to the trials. Optuna proposes by TPE (Bergstra et al. 2011, "Algorithms for
Hyper-Parameter Optimization") and prunes by the median of the other trials at the same step (Golovin et al. 2017,
"Google Vizier", section 3.2). A trial that was running when everything was killed is still RUNNING there, and resumes.
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import optuna
from optuna import Study as Study
from optuna import Trial as Trial
from optuna import TrialPruned as TrialPruned
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError as StorageInternalError
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as TrialState
from pydantic import Field

from flows.flow_configs import Name
from plm_core import config
from plm_core.shared.errors import UserError
from plm_core.shared.paths import METRICS, STUDY

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
    """The maximum number of trials, over all calls of the command."""
    minutes: Above0 | None = None
    """The wall-clock time for the trials, over all calls; trials that run at the end keep their state, and resume
    when there is more time. null: no limit but the number of trials."""
    cost: Above0 | None = None
    """The same in money, at the price of an hour of this machine in ``PLM_PRICE_PER_HOUR``."""
    prune: bool = True
    """Whether to end a trial early if a validation is worse than the median of the other trials at this step: for
    metrics that a training run reports, ``valid_loss`` and ``valid_score``."""
    seed: int = 0
    """The seed of the search. With one trial at a time, the same seed tries the same values."""

    def __post_init__(self) -> None:
        # Refuse here what would otherwise fail in the first trial.
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


RANDOM, WARM = 10, 5
"""The number of trials drawn at random before the search proposes any, and the number that are never pruned."""
ENDED = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class Ended:
    """What became of a trial."""

    number: int
    state: str
    """``complete``, ``pruned`` or ``failed``."""
    params: dict[str, Value]
    value: float | None
    """The metric; of a trial that was pruned, the last value that it reported."""
    seconds: float
    reason: str
    """Why it failed, or where it was pruned."""


def open_study(folder: Path, sweep: Sweep) -> Study:
    """The study of a sweep, created if there is none. Raises UserError: the study in this folder searches something
    else."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=folder.name,
        storage=f"sqlite:///{folder / STUDY}",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=WARM) if sweep.prune else optuna.pruners.NopPruner(),
        direction="minimize" if sweep.direction == "lower" else "maximize",
        load_if_exists=True,
    )
    # With the same seed, a call that resumes a sweep would draw the first trials again.
    seed = sweep.seed + len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM)
    # Trials of two spaces, or by two metrics, say nothing about each other.
    if study.user_attrs.get("searched", sweep.searched) != sweep.searched:
        raise UserError(
            f"sweep: {folder} has searched another space, or by another metric; expected the same ones, or another "
            "name (plm sweep --name)"
        )
    study.set_user_attr("searched", sweep.searched)
    return study


def distribution(values: Range | list[Value]) -> BaseDistribution:
    """Optuna's type for the values of a parameter."""
    if isinstance(values, list):
        return CategoricalDistribution(values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return IntDistribution(values.low, values.high, log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def in_state(study: Study, *states: TrialState) -> list[FrozenTrial]:
    """The trials in any of these states, in the order of their numbers."""
    return study.get_trials(deepcopy=False, states=states)


def ended_trials(study: Study) -> list[Ended]:
    """The trials that have ended."""
    return [
        Ended(
            trial.number,
            ENDED[trial.state],
            params_of(trial),
            trial.value,
            trial.user_attrs.get("seconds", 0.0),
            trial.user_attrs.get("reason", ""),
        )
        for trial in in_state(study, *ENDED)
    ]


def best(study: Study) -> Ended | None:
    """The best complete trial."""
    complete = [trial for trial in ended_trials(study) if trial.state == "complete"]
    return next((trial for trial in complete if trial.number == study.best_trial.number), None)


def params_of(trial: Trial | FrozenTrial) -> dict[str, Value]:
    """A trial's parameters, with numbers rounded to four digits, for people to read, write and compare."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in trial.params.items()}
