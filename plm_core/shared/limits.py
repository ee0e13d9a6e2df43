"""The limits of this process: its cores, its control groups, what the environment allows, and its time to end."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from plm_core.shared.errors import UserError

CGROUPS = Path("/sys/fs/cgroup")
SAVING_S = 600
"""How long a stage that was asked to end may take to save its state before it is killed; the parents of the process
that ends it must wait longer."""


def cores() -> int:
    """How many cores this process may use: those that it is bound to, or fewer if its control groups allow fewer,
    rounded up, as in a container.
    """
    most = len(os.sched_getaffinity(0))
    for group in groups():
        with contextlib.suppress(OSError, ValueError):  # none, or "max"
            quota, period = map(int, (group / "cpu.max").read_text().split())
            most = min(most, -(-quota // period))
    return most


def processes() -> int:
    """How many processes may work here in parallel, one core each: ``PLM_CORES``, otherwise ``cores()``. Raises
    UserError: ``PLM_CORES`` is not a number, 1 or more."""
    return number("PLM_CORES", "cores") or cores()


def groups() -> Iterator[Path]:
    """This process's control group and those above it (cgroups(7), version 2)."""
    try:
        found = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        group = CGROUPS / found[1]
        yield from (path for path in (group, *group.parents) if path.is_relative_to(CGROUPS))


def number(name: str, what: str) -> int | None:
    """A number of cores, GPUs, processes or nodes from the environment; None if the variable is not set. Raises
    UserError: it is not a whole number, 1 or more."""
    given = os.environ.get(name)
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise UserError(f"{name}: found {given!r}; expected a number of {what}, 1 or more")
    return None if given is None else int(given)
