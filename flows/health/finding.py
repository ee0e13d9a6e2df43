"""A finding: what a check has to say. Used by every check, and by ``flows/doctor.py``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    what: str
    where: str
    mend: str
    """What mends it, in one line."""
    safe: Callable[[], object] | None = field(default=None, compare=False)
    """Mends it, where that can delete no result, version, decision or point of a curve."""


@dataclass(frozen=True)
class Note:
    """Something that is as it should be, and worth knowing."""

    text: str


Check = Callable[[Path, bool], Iterator[Finding | Note]]
"""Looks at a checkout; if the second argument is True, at the bytes of everything, which takes long. A UserError or an
OSError says that it could not look."""
