"""Runs one stage as a process of its own through ``dvc repro``; ends all that run. ``flows/flow.py`` uses it.

Each stage is a session: ``supervisor.py`` -> ``dvc`` -> shell -> ``python -m tasks...``. This process holds
the write end of a pipe to the supervisor. Closing it ends the stage gently, and the kernel closes it when
this process dies, so that cancelling, Ctrl-C, a crash and SIGKILL of the flow all take the same way and leave
no orphan.
"""

import os
import re
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

_STATUS = re.compile(r", exited with (-?\d+)$")
_BUSY = re.compile(
    r"Unable to acquire lock|is busy, it is being blocked by"
    # Another DVC was killed while it wrote these; see mending.py.
    r"|RWLock-file '.*'\. JSON structure is corrupted|dvc\.lock' (is invalid|validation failed)"
)
_CHATTER = re.compile(
    r"$"
    r"|(Running stage|Stage) '.*'(:$| didn't change)"
    r"|> "
    r"|(Generating|Updating) lock file 'dvc\.lock'$"
    r"|To track the changes with git, run:$"
    r"|\tgit add "
    r"|To enable auto staging, run:$"
    r"|\tdvc config core\.autostage true$"
    r"|Use `dvc push` to send your updates to remote storage\.$"
    r"|Data and pipelines are up to date\.$"
)
_FAILED = re.compile(r"ERROR: failed to reproduce '.*': ")
_SIGNALS = {number.value for number in signal.Signals}


class CancelledError(Exception):
    """The pipeline is being cancelled: nothing new starts."""


class StageError(Exception):
    """A stage that did not end well."""

    def __init__(self, stage: str, status: int | None, tail: Sequence[str], transient: bool) -> None:
        super().__init__(stage, status, tail, transient)
        self.stage = stage
        self.status = status
        """The exit status of the stage's command, negative for a signal; None when DVC itself failed."""
        self.tail = list(tail)
        """The last lines that the stage and DVC wrote."""
        self.transient = transient
        """Worth another try: DVC's lock was busy or half written, a signal killed the command, or it asks for that."""

    @property
    def reason(self) -> str:
        """The line that says why: the stage's own ``error:`` line, else its last, else DVC's message."""
        shell = signal.strsignal(-self.status) if self.status is not None and self.status < 0 else None
        said = [line for line in self.tail if line != shell and not _FAILED.match(line)]
        errors = [line for line in said if line.startswith("error: ")]
        dvc = [_FAILED.sub("", line) for line in self.tail if _FAILED.match(line)]
        lines = errors or (said if self.status is not None else dvc) or dvc or said or ["no output"]
        return lines[-1].removeprefix("error: ")

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
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def run(
        self,
        stage: str,
        on_line: Callable[[str], None],
        *,
        env: Mapping[str, str] | None = None,
        force: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Reproduce one stage, without looking at its upstreams, and wait for it.

        Args:
            stage: DVC's address of the stage.
            on_line: Called with each line of the stage as it comes; DVC's own talk is left out.
            env: What the stage finds in its environment besides this process's.
            force: Run it even if DVC thinks that nothing changed.
            pass_fds: Descriptors, such as of locks, that stay open until the stage's last process has ended.

        Raises:
            StageError: the command failed, or DVC did.
            CancelledError: ``interrupt_all`` was called before it could start.
        """
        flags = ["--force"] if force else []
        # The waiting flag goes before the subcommand; without it DVC gives up after 3 s and the work is lost.
        dvc = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", *flags, stage]
        process = self._start(dvc, {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}, pass_fds)
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.rstrip()
                if not _CHATTER.match(text):
                    tail.append(text)
                    if not _FAILED.match(text):
                        on_line(text)
            returned = process.wait()
        finally:
            self._finish(process)
        if returned:
            raise _failure(stage, returned, list(tail))

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


def _close(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def _failure(stage: str, returned: int, tail: list[str]) -> StageError:
    """What went wrong. DVC ends with its own status and tells the command's at the end of its message."""
    said = [match for line in tail if (match := _STATUS.search(line))]
    if said:
        status = int(said[-1].group(1))
        # A shell between DVC and the command turns signal n into 128 + n; bash replaces itself by a single
        # command, dash does not, and says itself what signal ended it ("Killed").
        status = 128 - status if status > 128 else status
        return StageError(stage, status, tail, transient=status < 0 or status == EX_TEMPFAIL)
    if returned < 0 or (returned > 128 and returned - 128 in _SIGNALS):
        number = -returned if returned < 0 else returned - 128
        return StageError(stage, -number, tail, transient=True)
    return StageError(stage, None, tail, transient=any(_BUSY.search(line) for line in tail))


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
