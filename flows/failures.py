"""The ways a stage can fail. Raised by ``process.py``; reported and retried by the flow."""

import signal
from collections.abc import Sequence

from flows import room
from plm_core.shared.memory import needs_less
from plm_core.shared.statuses import INTERRUPTED

KILLED = f"killed by signal {signal.SIGKILL:d}"
"""What the launcher of several processes prints if one of them was killed."""
SAVED = "interrupted: state saved"
"""How the last line of an interrupted training run begins; the step follows."""

_SIGNALS = {number.value for number in signal.Signals}


class CancelledError(Exception):
    """The pipeline is being cancelled: nothing new starts."""


class StageError(Exception):
    """A stage failed."""

    def __init__(self, stage: str, status: int | None, tail: Sequence[str], transient: bool) -> None:
        super().__init__(stage, status, tail, transient)
        self.stage = stage
        self.status = status
        """The exit status of the stage's command, negative for a signal; None if something else failed."""
        self.tail = list(tail)
        """The last lines that the stage wrote."""
        self.transient = transient
        """Worth another try: its files were busy, a signal killed the command, or its exit status asks for it."""
        self.over: float | None = None
        """The time limit in minutes, if the stage exceeded it."""

    @property
    def reason(self) -> str:
        """The line that says why: the stage's own ``error:`` line, or its last line."""
        shell = signal.strsignal(-self.status) if self.status is not None and self.status < 0 else None
        said = [line for line in self.tail if line and line != shell]
        errors = [line for line in said if line.startswith("error: ")]
        return (errors or said or ["no output"])[-1].removeprefix("error: ")

    @property
    def saved(self) -> str:
        """What the stage printed about the state it saved when it was interrupted; empty if it printed nothing."""
        return next((line for line in self.tail if line.startswith(SAVED)), "")

    def __str__(self) -> str:
        if self.over:
            return f"{self.stage}: stopped after {self.over:g} minutes (meta.minutes in dvc.yaml): {self.reason}"
        if self.status is None:
            return f"{self.stage}: {self.reason}"
        if self.status < 0:
            return f"{self.stage}: killed by {_signal_name(-self.status)}: {self.reason}"
        return f"{self.stage}: exit status {self.status}: {self.reason}"

    __repr__ = __str__


def failure(stage: str, returned: int, tail: list[str], memory: int | None, over: float | None) -> StageError:
    """The error of a stage.

    ``memory`` is how large it was, if the kernel killed a process for lack of memory while it ran; ``over`` is the
    limit in minutes, if it exceeded one.
    """
    # A shell in between, and the supervisor, turn signal n into 128 + n; a shell may also print its name ("Killed").
    status = 128 - returned if returned - 128 in _SIGNALS else returned
    transient = status < 0 or status == INTERRUPTED or over is not None
    if memory is not None and (status == -signal.SIGKILL or any(KILLED in line for line in tail)):
        tail.append(f"error: out of memory, at {room.said(memory)}; {needs_less(stage)}")
        transient = False
    error = StageError(stage, status, tail, transient)
    error.over = over
    return error


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
