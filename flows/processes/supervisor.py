"""Runs one command, and ends all its descendant processes when it ends or when the process that started it dies.

A standalone program that imports nothing from the project: ``supervisor.py GRACE_SECONDS COMMAND...``; used by
``process.py``, and forked by ``forkserver.py``. Its standard input is a pipe that nobody writes to. When
the other end closes, the starter wants the command to end, or has been killed: either way every process of the group
gets SIGINT, time to save, then SIGTERM, then SIGKILL. DVC alone would leave its child an orphan on SIGTERM, and the
kernel's death signal reaches only one generation.

With ``--lifeline`` before these arguments, the command is a launcher, which runs another supervisor somewhere else. It
gets the pipe as its own standard input, so that it notices when the pipe closes.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import psutil

TERM_S = 5.0
"""How long a process may take from SIGTERM to its end."""

POLL_S = 0.05
"""How often the descendants are checked while they end."""

LIFELINE = "--lifeline"
ENDED = "\0ended: "
"""The prefix of the supervisor's own last line: the exit status of the command, 128 + n if signal n killed it, the CPU
seconds of all its processes that were waited for, and the kilobytes of the largest of these."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""prctl(2): the signal that a process gets when its parent dies; and whether processes whose parent died become
children of this one, so that none escapes."""

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""The signals that do not end the supervisor."""


def main(grace_s: float, command: list[str], stdin: int | None = subprocess.DEVNULL) -> int:
    """Run the command to its end; return its exit status, 128 + n if signal n killed it."""
    prepare()
    child = subprocess.Popen(command, stdin=stdin, close_fds=False, preexec_fn=partial(end_with, os.getpid()))
    return supervise(child.pid, grace_s)


def start_supervisor(grace_s: float, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a supervisor of the command; both end when the pipe that is its standard input is closed."""
    program = [sys.executable, "-P", __file__, str(grace_s), *command]
    return subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True, **options)


def end_with(parent: int) -> None:
    """Have this process, the supervisor's child, get SIGTERM if the supervisor is killed; nobody else would end it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


def prepare() -> None:
    """Before there is a child: handle signals, and adopt processes whose parents die."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A worker of Ray, for example, blocks SIGINT, and children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    # Handlers, not SIG_IGN, which children inherit: the command must receive what its supervisor ignores.
    for number in HEARD:
        signal.signal(number, lambda *_: None)


def supervise(child: int, grace_s: float) -> int:
    """Wait for the child with this id and end all that it leaves; return its exit status, like ``main``."""
    # Wait until the child ends or the pipe closes: each signal, SIGCHLD too, writes a byte that wakes this process.
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    closed = False
    while not (closed or _has_ended(child)):
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        closed = 0 in ready and not os.read(0, 1)
    if closed:
        os.killpg(0, signal.SIGINT)
        deadline = time.monotonic() + grace_s
        while not _has_ended(child) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    end = psutil.Process.terminate
    while family := _family():
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        deadline = time.monotonic() + TERM_S
        while _family() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        end = psutil.Process.kill
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 128 - status if status < 0 else status
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{ENDED}{status} {used.ru_utime + used.ru_stime:.2f} {used.ru_maxrss}", flush=True)
    return status


def _has_ended(child: int) -> bool:
    """Whether the child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _family() -> list[psutil.Process]:
    """All living descendants, whatever session they moved to."""
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


if __name__ == "__main__":
    lifeline = sys.argv[1] == LIFELINE
    sys.exit(main(float(sys.argv[1 + lifeline]), sys.argv[2 + lifeline :], None if lifeline else subprocess.DEVNULL))
