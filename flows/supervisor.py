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
import signal
import subprocess
import sys
import threading

import psutil

TERM_S = 5.0
"""How long a process may take from SIGTERM to its end."""

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes whose parent died become children of this one, so that none is lost sight of."""


def main(grace_s: float, command: list[str]) -> int:
    """Run the command to its end; return its exit status, 128 + n if signal n killed it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Handlers, not SIG_IGN: those are inherited, and the command must hear what its supervisor ignores.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = psutil.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_when_told, args=(child, grace_s), daemon=True).start()
    status = int(child.wait())
    _end(psutil.Process().children(recursive=True))
    return 128 - status if status < 0 else status


def _end_when_told(child: psutil.Process, grace_s: float) -> None:
    while os.read(0, 1):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGINT)
    family = [child, *child.children(recursive=True)] if child.is_running() else []
    _, left = psutil.wait_procs(family, timeout=grace_s)
    _end(left)


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=TERM_S)
    for process in left:
        for member in (process, *_descendants(process)):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    # Not sys.exit: the thread that reads standard input would hold the interpreter.
    os._exit(main(float(sys.argv[1]), sys.argv[2:]))
