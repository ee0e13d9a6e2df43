"""Which process a number means: the kernel gives it to another one some day. Used by the pool, the guard, who sends
journals, and flows."""

import socket
import sys
from pathlib import Path


def place() -> str:
    """Where the numbers of processes, and the clock since the boot, mean what they mean here: this boot of the kernel,
    this namespace of numbers. It is never the same on two machines."""
    if sys.platform != "linux":
        return socket.gethostname()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def started(pid: int) -> str:
    """When the process with this number started, in the kernel's ticks since the boot; empty when there is none, and
    where the kernel is not Linux."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else others[18]
