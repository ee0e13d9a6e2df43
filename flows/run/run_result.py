"""The outcomes of a pipeline and of its stages. Used by the flow, by what displays it, and by the `plm` command."""

from dataclasses import dataclass, field
from typing import Any, Literal


class FailedError(Exception):
    """A stage or the registration failed. Raised through the tracking run, so that the run ends as FAILED."""


@dataclass
class Spent:
    """The time and memory that a stage took."""

    begun: float = 0.0
    """When it began, in seconds after the start of the run."""
    seconds: float = 0.0
    cpu: float = 0.0
    """The CPU seconds of all its processes."""
    memory: int = 0
    """The peak memory of its largest process, in bytes."""


@dataclass(frozen=True)
class StageOutcome:
    """What became of one stage."""

    name: str
    outcome: Literal["ran", "up to date", "failed", "not run"]
    spent: Spent = field(default_factory=Spent)
    """The time and memory of the last attempt."""
    reason: str = ""
    """Why it ran, failed or did not run."""
    status: int | None = None
    """The exit status with which it failed."""

    @property
    def ok(self) -> bool:
        """Whether it is up to date now."""
        return self.outcome in ("ran", "up to date")


@dataclass(frozen=True)
class Result:
    """What became of the pipeline."""

    stages: tuple[StageOutcome, ...]
    error: str = ""
    """The line of the first stage that failed, or of the registration; empty if all is well."""
    registered: float = 0.0
    """How many seconds the registration took."""
    models: tuple[Any, ...] = ()
    """What became of the model versions, each a ``VersionOutcome`` of ``promotion.py``."""

    @property
    def ok(self) -> bool:
        """Whether every stage is up to date and the models are registered."""
        return not self.error

    @property
    def ran(self) -> tuple[str, ...]:
        """The names of the stages that ran."""
        return tuple(stage.name for stage in self.stages if stage.outcome == "ran")
