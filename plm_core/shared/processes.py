"""Which process a number means: the kernel gives it to another one some day. Used by the pool, the guard and flows."""

from pathlib import Path


def started(pid: int) -> str:
    """When the process with this number started, in the kernel's ticks since the boot; empty when there is none, and
    where the kernel is not Linux."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else others[18]
