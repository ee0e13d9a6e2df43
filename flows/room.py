"""Checks whether a stage will have the disk space and memory that it took when it last ran, and whether a stage was
killed for lack of memory. Used by ``flows/flow.py`` and ``flows/process.py``.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from flows.outcome import UserError
from plm_core.shared.limits import groups

RESERVE = 100 << 20
"""The bytes of disk space reserved for what is not an output of a stage: snapshots, journals, logs."""

LEAST = 1 << 20
"""The bytes without which DVC cannot record that a stage has run."""

FREES = "`plm gc` frees what no stage needs any more"

VMSTAT = Path("/proc/vmstat")


class FullError(UserError):
    """There is too little disk space for any stage."""


def look(root: Path, outputs: int, memory: int, say: Callable[[str], object]) -> None:
    """Warn if disk space or memory may not suffice for a stage, given the bytes of its last outputs and its last peak.
    Raises FullError: the disk is too full for any stage."""
    free = shutil.disk_usage(root).free
    disk = f"{root}: {said(free)} of disk space are free"
    if free < LEAST:
        raise FullError(f"{disk}, too little for any stage; {FREES}")
    if free < 2 * outputs + RESERVE:
        say(f"{disk}, but the last outputs had {said(outputs)}, which are kept here and in DVC's cache; {FREES}")
    if (left := available()) < memory:
        say(f"{said(left)} of memory are free, but the last run of this stage took {said(memory)}: it may be killed")


def available() -> int:
    """How many bytes of memory this process and its children may still take, limited by the machine and its control
    groups, as in a container.
    """
    left = [psutil.virtual_memory().available]
    for group in groups():
        try:
            limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        except (OSError, ValueError):  # none, or "max"
            continue
        left.append(limit - used + _count(group / "memory.stat", "inactive_file"))
    return max(0, min(left))


def killed_for_memory() -> int:
    """How many processes the kernel has killed for lack of memory: in this control group, or else on this machine."""
    events = [group / "memory.events" for group in groups()]
    return next((_count(path, "oom_kill") for path in events if path.exists()), _count(VMSTAT, "oom_kill"))


def said(size: int) -> str:
    """A size for people: ``1.2 GB``."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _count(path: Path, name: str) -> int:
    """The number after this name in a file with a name and a number per line; 0 if it is missing."""
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
