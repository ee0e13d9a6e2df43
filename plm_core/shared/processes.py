"""Which process a PID refers to, for the kernel reuses them, and how processes end with those that started them."""

import ctypes
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def end_with_parent() -> None:
    """Have this process get SIGTERM when the one that started it dies, whatever kills that."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def place() -> str:
    """The scope in which PIDs and the clock since boot are valid: this boot of the kernel and this PID namespace. It is
    never the same on two machines."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def started(pid: int) -> str:
    """When the process with this PID started, in the kernel's ticks since boot; empty if there is none."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else others[18]
