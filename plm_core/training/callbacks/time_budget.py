"""``training.minutes``: the learning rate falls with the clock, and the run ends when the time is up."""

from time import perf_counter

from plm_core.training.callbacks import Callback
from plm_core.training.config import LoopConfig
from plm_core.training.schedule import learning_rate_at, progress_at


class TimeBudget(Callback):
    """The time that a run has taken, interruptions excluded; without ``minutes`` only its steps count."""

    saved = ("seconds", "warm")

    def __init__(self, config: LoopConfig) -> None:
        self._config = config
        self._begun = perf_counter()
        self.seconds = 0.0
        """How long the run has taken; 0 unless it has a time budget."""
        self.warm = 0.0
        """How many of these seconds the warm-up took."""

    def start(self) -> None:
        """Continue from the seconds of a snapshot, if there are any."""
        self._begun = perf_counter() - self.seconds

    def elapsed(self) -> float:
        """Seconds until now. The clock is part of the state and differs between runs: without a budget, it is 0."""
        return 0.0 if self._config.minutes is None else perf_counter() - self._begun

    def update(self, step: int, seconds: float) -> None:
        """Record that the first ``step`` steps took so many seconds."""
        self.seconds = seconds
        # The budget counts from the end of the warm-up, which has its number of steps.
        if step <= self._config.optimizer.warmup_steps:
            self.warm = seconds

    def ended(self, step: int) -> bool:
        """Whether no steps or no time are left after ``step`` steps."""
        budget = self._config.minutes
        return step == self._config.steps or (budget is not None and self.seconds >= 60 * budget)

    def rate(self, step: int) -> float:
        """The learning rate of ``step`` (from 0), which is the next one."""
        config = self._config
        progress = progress_at(step, config.steps, config.optimizer)
        if config.minutes is not None:
            progress = max(progress, (self.seconds - self.warm) / max(1e-9, 60 * config.minutes - self.warm))
        return learning_rate_at(step, progress, config.optimizer)
