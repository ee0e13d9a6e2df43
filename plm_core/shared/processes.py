"""Which process a PID refers to: the kernel reuses them. Used by the guard, the sender of journals, and flows."""

from pathlib import Path


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
