"""What a sweep has tried and tries next: Optuna's study, in a database next to the trials. Used by ``sweep.py``.

Optuna proposes by TPE (Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization") and prunes by the median of
the other trials at the same step (Golovin et al. 2017, "Google Vizier", section 3.2). A trial that was running when
everything was killed is still RUNNING there, and resumes.
"""

from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna import Study as Study
from optuna import Trial as Trial
from optuna import TrialPruned as TrialPruned
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError as StorageInternalError
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as TrialState

from flows.outcome import UserError
from flows.sweeps.space import Range, Sweep, Value
from plm_core.shared.paths import STUDY

RANDOM, WARM = 10, 5
"""The number of trials drawn at random before the search proposes any, and of those that are never pruned."""
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


def opened(folder: Path, sweep: Sweep) -> Study:
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
    # Otherwise a call that resumes a sweep would draw the first trials again.
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


def ended(study: Study) -> list[Ended]:
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
    complete = [trial for trial in ended(study) if trial.state == "complete"]
    return next((trial for trial in complete if trial.number == study.best_trial.number), None)


def params_of(trial: Trial | FrozenTrial) -> dict[str, Value]:
    """A trial's parameters, with numbers rounded to four digits, for people to read, write and compare."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in trial.params.items()}
