"""A finding: what a check reports. Used by every check, and by ``flows/doctor.py``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """A problem."""

    what: str
    where: str
    mend: str
    """How to fix it, in one line."""
    safe: Callable[[], object] | None = field(default=None, compare=False)
    """Fixes it; None if that could delete a result, a version, a decision or a point of a curve."""


@dataclass(frozen=True)
class Note:
    """Something that is as it should be, and worth knowing."""

    text: str


Check = Callable[[Path, bool], Iterator[Finding | Note]]
"""Checks a checkout; if the second argument is True, reads the bytes of everything, which takes long. A UserError or an
OSError says that the check could not be made."""
