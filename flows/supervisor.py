"""Runs one command and ends its whole family of processes when it ends, and when whoever started it dies.

A program of its own, used by ``flows/process.py``: ``supervisor.py GRACE_SECONDS COMMAND...``. Its standard
input is a pipe that nobody writes to. When the other end closes, the starter wants the command to end, or has
been killed: either way every process of the group gets SIGINT, time to save, then SIGTERM, then SIGKILL. DVC
alone would leave its child an orphan on SIGTERM, and the kernel's death signal (``PR_SET_PDEATHSIG``) reaches
one generation only.
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

import psutil

TERM_S = 5.0
"""How long a process may take from SIGTERM to its end."""

POLL_S = 0.05
"""How often the family is looked at while it ends."""

USED = "\0processor seconds: "
"""Begins the supervisor's own last line, of what the command and all that it started and waited for has used."""

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes whose parent died become children of this one, so that none is lost sight of."""


def main(grace_s: float, command: list[str]) -> int:
    """Run the command to its end; return its exit status, 128 + n if signal n killed it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Handlers, not SIG_IGN: that is inherited, and the command must hear what its supervisor does not.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    if _told_before_end(child):
        os.killpg(0, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    for process in _family():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _wait_for_family(TERM_S)
    while family := _family():
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _wait_for_family(TERM_S)
    status = child.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{USED}{used.ru_utime + used.ru_stime:.2f}", flush=True)
    return 128 - status if status < 0 else status


def _told_before_end(child: "subprocess.Popen[bytes]") -> bool:
    """Wait until the child ends or the pipe closes; whether it was the pipe."""
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)  # each signal, SIGCHLD too, writes a byte
    while child.poll() is None:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        if 0 in ready and not os.read(0, 1):
            return True
    return False


def _wait_for_family(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _family() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _family() -> list[psutil.Process]:
    """Every living descendant, whatever session it moved to."""
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
