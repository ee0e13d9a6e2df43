"""Runs a stage's command as a process of its own; ends all that run. ``flows/flow.py`` uses it.

Each stage is a session: ``supervisor.py`` -> shell -> ``python -m tasks...``. This process holds
the write end of a pipe to the supervisor. Closing it ends the stage gently, and the kernel closes it when
this process dies, so that cancelling, Ctrl-C, a crash and SIGKILL of the flow all take the same way and leave
no orphan.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flows import supervisor

GRACE_S = 60.0
"""How long a stage may take to save its state when it is interrupted."""

TAIL_LINES = 40
"""How many of a stage's last lines a failure carries."""

EX_TEMPFAIL = 75
"""sysexits(3): interrupted, state saved, worth another try."""

_SIGNALS = {number.value for number in signal.Signals}


class CancelledError(Exception):
    """The pipeline is being cancelled: nothing new starts."""


class StageError(Exception):
    """A stage that did not end well."""

    def __init__(self, stage: str, status: int | None, tail: Sequence[str], transient: bool) -> None:
        super().__init__(stage, status, tail, transient)
        self.stage = stage
        self.status = status
        """The exit status of the stage's command, negative for a signal; None when something else failed."""
        self.tail = list(tail)
        """The last lines that the stage wrote."""
        self.transient = transient
        """Worth another try: its files were busy, a signal killed the command, or it asks for that."""

    @property
    def reason(self) -> str:
        """The line that says why: the stage's own ``error:`` line, else its last."""
        shell = signal.strsignal(-self.status) if self.status is not None and self.status < 0 else None
        said = [line for line in self.tail if line and line != shell]
        errors = [line for line in said if line.startswith("error: ")]
        return (errors or said or ["no output"])[-1].removeprefix("error: ")

    def __str__(self) -> str:
        if self.status is None:
            return f"{self.stage}: {self.reason}"
        if self.status < 0:
            return f"{self.stage}: killed by {_signal_name(-self.status)}: {self.reason}"
        return f"{self.stage}: exit status {self.status}: {self.reason}"

    __repr__ = __str__


class StageProcesses:
    """The stages' processes of one run of the pipeline. Safe to use from several threads."""

    def __init__(self, root: Path, grace_s: float = GRACE_S) -> None:
        self.interrupted = threading.Event()
        """Set when no stage may start any more."""
        self._root = root
        self._grace_s = grace_s
        self._umask = _umask()
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def run(
        self,
        stage: str,
        command: Sequence[str],
        on_line: Callable[[str], None],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> float:
        """Run a stage's command in the repository's folder, wait for it, and return the processor seconds it used.

        Args:
            stage: DVC's address of the stage.
            command: The program and its arguments.
            on_line: Called with each line of the stage as it comes.
            env: What the stage finds in its environment besides this process's.
            pass_fds: Descriptors, such as of locks, that stay open until the stage's last process has ended.

        Raises:
            StageError: the command failed.
            CancelledError: ``interrupt_all`` was called before it could start.
        """
        process = self._start(command, {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}, pass_fds)
        used = 0.0
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(supervisor.USED):
                    used = float(line.removeprefix(supervisor.USED))
                else:
                    tail.append(line.rstrip())
                    on_line(tail[-1])
            returned = process.wait()
        finally:
            self._finish(process)
        if returned:
            raise _failure(stage, returned, list(tail))
        return used

    def interrupt_all(self) -> None:
        """End every running stage and wait until their last processes have: SIGINT, time to save, SIGTERM,
        SIGKILL.
        """
        self.interrupted.set()
        with self._lock:
            running = list(self._running)
            for process in running:
                _close(process)
        for process in running:
            process.wait()

    def _start(
        self, command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int]
    ) -> "subprocess.Popen[str]":
        with self._lock:
            if self.interrupted.is_set():
                raise CancelledError
            process = subprocess.Popen(
                [sys.executable, "-P", supervisor.__file__, str(self._grace_s), *command],
                cwd=self._root,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
                pass_fds=pass_fds,
                # DVC, in another thread, sets that of this process to 0 now and then.
                umask=self._umask,
            )
            self._running.add(process)
            return process

    def _finish(self, process: "subprocess.Popen[str]") -> None:
        """Forget a process. One that still runs, because a callback raised, ends as if it had been
        interrupted.
        """
        with self._lock:
            self._running.discard(process)
            _close(process)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _umask() -> int:
    """This process's umask, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _close(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def _failure(stage: str, returned: int, tail: list[str]) -> StageError:
    # A shell in between, and the supervisor, turn signal n into 128 + n; a shell may also say its name ("Killed").
    status = 128 - returned if returned - 128 in _SIGNALS else returned
    return StageError(stage, status, tail, transient=status < 0 or status == EX_TEMPFAIL)


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
