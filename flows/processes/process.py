"""Runs each stage's command as a process of its own, and can end them all. Used by ``flows/run/flow.py``.

Each stage is a session: ``supervisor.py`` -> shell -> ``python -m tasks...``, or the supervisor and the stage as
``forkserver.py`` forks them. This process holds the write end of a pipe to the supervisor. Closing it ends the stage
gently, and the kernel closes it when this process dies, so cancelling, Ctrl-C, a crash and SIGKILL of the flow all work
the same way and leave no orphan.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from flows.processes import resources, supervisor
from flows.processes.forkserver import READ, ForkServer
from flows.processes.resources import CancelledError
from flows.run.run_result import Spent
from plm_core.shared.environment import SAVING_S
from plm_core.shared.errors import INTERRUPTED, USER_ERROR, needs_less

GRACE_S = SAVING_S + 30.0
"""How long a stage may take to end when it is interrupted, including the launcher of one with several processes."""

TAIL_LINES = 40
"""How many of a stage's last lines a failure includes."""

PLAIN = re.compile(r"python -m [\w.]+( [\w.,:=@+/-]+)*")
"""A command that needs no shell."""

KILLED = f"killed by signal {signal.SIGKILL:d}"
"""What the launcher of several processes prints if one of them was killed."""
SAVED = "interrupted: state saved"
"""How the last line of an interrupted training run begins; the step follows."""

_SIGNALS = {number.value: number.name for number in signal.Signals}


@dataclass(eq=False, repr=False)
class StageError(Exception):
    """A stage failed."""

    stage: str
    status: int | None
    """The exit status of the stage's command, negative for a signal; None if something else failed."""
    tail: Sequence[str]
    """The last lines that the stage wrote."""
    transient: bool
    """Worth another try: its files were busy, a signal killed the command, or its exit status asks for it."""
    over: float | None = None
    """The time limit in minutes, if the stage exceeded it."""

    @property
    def reason(self) -> str:
        """The line that says why: the stage's own ``error:`` line, or its last line."""
        shell = signal.strsignal(-self.status) if self.status is not None and self.status < 0 else None
        lines = [line for line in self.tail if line and line != shell]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["no output"])[-1].removeprefix("error: ")

    @property
    def saved(self) -> str:
        """What the stage printed about the state it saved when it was interrupted; empty if it printed nothing."""
        return next((line for line in self.tail if line.startswith(SAVED)), "")

    def __str__(self) -> str:
        if self.over:
            how = f"stopped after {self.over:g} minutes (meta.minutes in dvc.yaml): "
        elif self.status is None:
            how = ""
        elif self.status < 0:
            how = f"killed by {_SIGNALS.get(-self.status, f'signal {-self.status}')}: "
        else:
            how = f"exit status {self.status}: "
        return f"{self.stage}: {how}{self.reason}"

    __repr__ = __str__


class Running:
    """A stage's supervisor: the pipe that ends it, and the output of both."""

    def __init__(self) -> None:
        (self.stdin, pipe), (out, self.stdout) = os.pipe(), os.pipe()
        self._pipe = os.fdopen(pipe, "wb", buffering=0)  # any thread may close it, and more than one
        self.lines: TextIO = os.fdopen(out, encoding="utf-8", errors="replace")
        self.ended = threading.Event()
        """Set when the last process of the stage has ended."""
        self.process: subprocess.Popen[bytes] | None = None
        """None if it was forked: then it is another process's child."""

    def end(self) -> None:
        """Have it end the stage: SIGINT, time to save, SIGTERM, SIGKILL."""
        self._pipe.close()

    def hear(self, on_line: Callable[[str], None], launched: bool) -> tuple[int, Spent, list[str]]:
        """Pass on each line as it comes; returns the exit status, what was used, and the last lines.

        If the command was ``launched`` elsewhere, the status is the one that its supervisor there has reported.
        """
        ended: list[int] = []
        used = Spent()
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        for line in self.lines:
            output, mark, about = line.partition(supervisor.ENDED)
            if output or not mark:  # a command's last line may lack its newline
                tail.append(output.rstrip())
                on_line(tail[-1])
            if mark:
                last, seconds, kilobytes = about.split()
                ended.append(int(last))
                used.cpu += float(seconds)
                used.memory = max(used.memory, 1024 * int(kilobytes))
        status = ended[-1] if ended else -signal.SIGKILL  # the supervisor was killed
        if launched and len(ended) > 1:  # of the supervisor on the node, then of the one here
            status = ended[0]
        elif launched and status != USER_ERROR:  # with USER_ERROR, the launcher itself has said what is wrong
            last = tail[-1] if tail else "no output"
            what = f"ended with status {status} and did not report how the stage ended: {last}"
            tail.append(f"error: the command in PLM_CLUSTER {what}")
            status = INTERRUPTED
        return status, used, list(tail)


class StageProcesses:
    """The processes of the stages in one run of the pipeline. Thread-safe."""

    def __init__(self, root: Path, grace_s: float = GRACE_S) -> None:
        self.interrupted = threading.Event()
        """Set when no more stages may start."""
        self._root = root
        self._grace_s = grace_s
        self._umask = os.umask(0o077)  # which can be read only by setting it
        os.umask(self._umask)
        self._running: set[Running] = set()
        self._lock = threading.Lock()
        self._forks: ForkServer | None = None

    @contextlib.contextmanager
    def forked(self) -> Iterator[None]:
        """Within the block, fork stages from a process that has their imports, as soon as it is ready."""
        self._forks = ForkServer()
        try:
            yield
        finally:
            self._forks.close()
            self._forks = None

    def run(
        self,
        stage: str,
        command: Sequence[str],
        on_line: Callable[[str], None],
        *,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        pass_fds: Sequence[int] = (),
        may_fork: bool = True,
        minutes: float | None = None,
        launcher: Sequence[str] = (),
    ) -> Spent:
        """Run a stage's command, wait for it, and return the CPU seconds and the memory that it used.

        Args:
            stage: DVC's address of the stage.
            command: The program and its arguments.
            on_line: Called with each line as it comes.
            env: Variables to add to this process's environment.
            folder: Where it runs; in the repository's folder by default.
            pass_fds: Descriptors, such as of locks, that stay open until the stage's last process has ended.
            may_fork: Whether it may be forked, if that is possible.
            minutes: The time limit, after which it is ended as if it were interrupted.
            launcher: A command that runs what follows it somewhere else (``executor.py``).

        Raises:
            StageError: the command failed.
            CancelledError: ``interrupt_all`` was called before it could start.
        """
        late = threading.Event()

        def end_late() -> None:
            late.set()
            running.end()

        # Counted before the stage starts, so that an increase can be blamed on this run.
        killed = resources.oom_kills()
        # If it still runs after the block, because a callback raised, it ends as if it had been interrupted.
        with self.beside(command, env or {}, launcher, folder, pass_fds, may_fork) as running:
            clock = threading.Timer(60 * (minutes or 0), end_late)
            if minutes:
                clock.start()
            try:
                returned, used, tail = running.hear(on_line, bool(launcher))
            finally:
                clock.cancel()
        if not returned:
            return used

        # Why it failed, and whether another try may help.
        # A shell in between, and the supervisor, turn signal n into 128 + n; a shell may also print its name.
        status = 128 - returned if returned - 128 in _SIGNALS else returned
        for_memory = resources.oom_kills() > killed
        if for_memory and (status == -signal.SIGKILL or any(KILLED in line for line in tail)):
            tail.append(f"error: out of memory, at {resources.human_size(used.memory)}; {needs_less(stage)}")
            raise StageError(stage, status, tail, transient=False)
        transient = status < 0 or status == INTERRUPTED or late.is_set()
        raise StageError(stage, status, tail, transient, over=minutes if late.is_set() else None)

    @contextlib.contextmanager
    def beside(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        launcher: Sequence[str],
        folder: Path | None = None,
        pass_fds: Sequence[int] = (),
        may_fork: bool = False,
    ) -> Iterator[Running]:
        """Start a command, with the arguments of ``run``; it ends with the block, or with the pipeline. Raises
        CancelledError: ``interrupt_all`` was called before it could start."""
        folder = folder or self._root
        whole = {**os.environ, **READ, **env}
        supervised = [sys.executable, "-P", supervisor.__file__]
        program = [*supervised, str(self._grace_s), *command]
        if launcher:  # one supervisor here, and one there
            program = [*supervised, supervisor.LIFELINE, str(self._grace_s), *launcher, *program]
        forks = self._forks if may_fork and not launcher and self._forks and self._forks.ready else None
        # Only a plain `python -m ...` for this Python can be forked; everything else needs a new process.
        request: dict[str, object] = {}
        if forks and "-c" in command[:-1] and PLAIN.fullmatch(command[-1]):
            python = shutil.which("python", path=whole.get("PATH"))
            if python and Path(python).parent == Path(sys.executable).parent:
                request = {"module": command[-1].split()[2:], "folder": str(folder), "env": whole}
                request |= {"umask": self._umask, "grace_s": self._grace_s}
        # Under the lock, so that interrupt_all sees every process that has been started.
        with self._lock:
            if self.interrupted.is_set():
                raise CancelledError
            running = Running()
            ends = (running.stdin, running.stdout, running.stdout, *pass_fds)
            try:
                if not (forks and request and forks.start(request, ends)):
                    running.process = subprocess.Popen(
                        program,
                        cwd=folder,
                        env=whole,
                        stdin=running.stdin,
                        stdout=running.stdout,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        pass_fds=pass_fds,
                        # Explicit, because DVC, in another thread, sets that of this process to 0 now and then.
                        umask=self._umask,
                    )
            finally:
                # The supervisor's ends of the pipes: they close when it ends.
                os.close(running.stdin)
                os.close(running.stdout)
            self._running.add(running)
        try:
            yield running
        finally:
            running.end()
            for _ in running.lines:  # until its last process has ended
                pass
            running.lines.close()
            if running.process:
                running.process.wait()
            running.ended.set()
            with self._lock:
                self._running.discard(running)

    def interrupt_all(self) -> None:
        """End every running stage and wait for all their processes: SIGINT, time to save, SIGTERM, SIGKILL."""
        self.interrupted.set()
        with self._lock:
            running = list(self._running)
        for process in running:
            process.end()
        for process in running:
            process.ended.wait()
