"""What a sweep has tried and tries next: Optuna's study, in a file next to the trials. Used by ``sweep.py``.

Optuna proposes by TPE (Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization") and prunes by the median of
the other trials at the same step (Golovin et al. 2017, "Google Vizier", section 3.2). Its journal is append-only and
outlives any process. A trial that was running when everything was killed is still RUNNING there, and resumes.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.outcome import UserError
from flows.sweeps.space import Range, Sweep, Value
from plm_core.shared.paths import STUDY

RANDOM, WARM = 10, 5
"""The number of trials drawn at random before the search proposes any, and of those that are never pruned."""


@dataclass(frozen=True)
class Ended:
    """What became of a trial."""

    number: int
    state: str
    """``complete``, ``pruned`` or ``failed``."""
    params: dict[str, Value]
    value: float | None
    """The metric; if the trial is not complete, the last value that was reported, if any."""
    seconds: float
    reason: str
    """Why it failed, or where it was pruned."""


class Study:
    """Optuna's study of a sweep. Thread-safe."""

    def __init__(self, folder: Path, name: str, sweep: Sweep) -> None:
        """Open the study of a sweep, or create it. Raises UserError: the study in this folder searches something
        else."""
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        def distribution(values: Range | list[Value]) -> Any:
            if isinstance(values, list):
                return CategoricalDistribution(values)
            if isinstance(values.low, int) and isinstance(values.high, int):
                return IntDistribution(values.low, values.high, log=values.log)
            return FloatDistribution(values.low, values.high, log=values.log)

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._states = optuna.trial.TrialState
        self._optuna = optuna
        self._sweep = sweep
        folder.mkdir(parents=True, exist_ok=True)
        self.study = optuna.create_study(
            study_name=name,
            storage=_journal(folder / STUDY),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=WARM),
            direction="minimize" if sweep.direction == "lower" else "maximize",
            load_if_exists=True,
        )
        # Otherwise a call that resumes a sweep would draw the first trials again.
        seed = sweep.seed + len(self.study.get_trials(deepcopy=False))
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM)
        before = self.study.user_attrs.get("searched")
        if before not in (None, sweep.searched):
            raise UserError(
                f"sweep: {folder} has searched another space, or by another metric; expected the same ones, or another "
                "name (plm sweep --name)"
            )
        self.study.set_user_attr("searched", sweep.searched)
        self._distributions = {name: distribution(values) for name, values in sweep.space.items()}

    def unfinished(self) -> list[Any]:
        """The trials that run, or ran when they were killed."""
        found = self.study.get_trials(deepcopy=False, states=(self._states.RUNNING,))
        return [self._optuna.Trial(self.study, trial._trial_id) for trial in found]

    def many(self) -> int:
        """How many trials have begun."""
        waiting = self.study.get_trials(deepcopy=False, states=(self._states.WAITING,))
        return len(self.study.get_trials(deepcopy=False)) - len(waiting)

    def ask(self) -> Any:
        """A new trial."""
        return self.study.ask(self._distributions)

    def reported(self, trial: Any) -> int:
        """The last step that a trial has reported; 0 for none."""
        return max(self.study.get_trials(deepcopy=False)[trial.number].intermediate_values, default=0)

    def report(self, trial: Any, step: int, value: float) -> bool:
        """Report a trial's value at a step; returns whether the trial should end."""
        trial.report(value, step)
        return bool(self._sweep.prune and trial.should_prune())

    def end(self, trial: Any, value: float | None, seconds: float, reason: str = "", pruned: bool = False) -> Ended:
        """Close a trial: with its metric, or without one and with the reason why it failed or was pruned."""
        self.pause(trial, seconds)
        trial.set_user_attr("reason", reason)
        state = None if value is not None else self._states.PRUNED if pruned else self._states.FAIL
        self.study.tell(trial.number, value, state)
        return next(each for each in self.ended() if each.number == trial.number)

    def pause(self, trial: Any, seconds: float) -> None:
        """Record how long an interrupted trial has taken so far."""
        trial.set_user_attr("seconds", trial.user_attrs.get("seconds", 0.0) + seconds)

    def ended(self) -> list[Ended]:
        """The trials that have ended."""
        names = {self._states.COMPLETE: "complete", self._states.PRUNED: "pruned", self._states.FAIL: "failed"}
        return [
            Ended(
                trial.number,
                names[trial.state],
                params_of(trial),
                # The metric, or the last value that was reported.
                trial.intermediate_values.get(trial.last_step or 0) if trial.value is None else trial.value,
                trial.user_attrs.get("seconds", 0.0),
                trial.user_attrs.get("reason", ""),
            )
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state in names
        ]

    def best(self) -> Ended | None:
        """The best complete trial."""
        complete = [trial for trial in self.ended() if trial.state == "complete" and trial.value is not None]
        sign = 1 if self._sweep.direction == "lower" else -1
        return min(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    @property
    def seconds(self) -> float:
        """The wall-clock time of all calls of the sweep."""
        return float(self.study.user_attrs.get("seconds", 0.0))

    @seconds.setter
    def seconds(self, value: float) -> None:
        self.study.set_user_attr("seconds", value)


def _journal(path: Path) -> Any:
    """Optuna's storage in a file to which lines are appended."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class Lock(JournalFileSymlinkLock):
        """Removes the part of a line that a full disk or a kill left, or the next line would be unreadable too."""

        def acquire(self) -> bool:
            held = super().acquire()
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            return held

    return JournalStorage(JournalFileBackend(str(path), Lock(str(path))))


def params_of(trial: Any) -> dict[str, Value]:
    """A trial's parameters, with numbers rounded to four digits, for people to read, write and compare."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in trial.params.items()}
