"""What becomes of a pipeline and of its stages. Used by the flow, by what shows it, and by the `plm` command."""

from dataclasses import dataclass, field
from typing import Any, Literal


class UserError(Exception):
    """What the user must mend; `plm` shows the message as one line, without a traceback."""


class FailedError(Exception):
    """A stage or the registration failed. It passes through the tracking run, which so ends as failed."""


@dataclass
class Spent:
    """What a stage took."""

    begun: float = 0.0
    """Seconds after the run's first look at a stage."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Processor seconds of all its processes."""
    memory: int = 0
    """Bytes of its largest process at its peak."""


@dataclass(frozen=True)
class Outcome:
    """What became of one stage."""

    name: str
    outcome: Literal["ran", "up to date", "failed", "not run"]
    spent: Spent = field(default_factory=Spent)
    """Of the last try."""
    reason: str = ""
    """Why it failed or did not run."""
    status: int | None = None
    """The exit status with which it failed."""

    @property
    def ok(self) -> bool:
        """Whether it is up to date now."""
        return self.outcome in ("ran", "up to date")


@dataclass(frozen=True)
class Result:
    """What became of the pipeline."""

    stages: tuple[Outcome, ...]
    error: str = ""
    """The first failing stage's own line, or that of the registration; empty when all is well."""
    begun: float = 0.0
    """When the first stage was looked at, on the monotonic clock."""
    registered: float = 0.0
    """How many seconds the registration took."""
    models: tuple[Any, ...] = ()
    """What became of the model versions, each an ``Outcome`` of ``promotion.py``."""

    @property
    def ok(self) -> bool:
        """Whether every stage is up to date and what they made is registered."""
        return not self.error

    @property
    def said(self) -> str:
        """What it did, in a line."""
        return f"ran: {', '.join(self.ran)}" if self.ran else "nothing has changed, so nothing ran"

    @property
    def ran(self) -> tuple[str, ...]:
        """The names of the stages that did something."""
        return tuple(stage.name for stage in self.stages if stage.outcome == "ran")
