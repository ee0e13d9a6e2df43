"""Something that the rules do not keep. Used by every file of this folder, and by ``flows/retention.py``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.settings import Retention


@dataclass(frozen=True)
class Waste:
    """Something to delete."""

    what: str
    why: str
    """Which rule does not keep it."""
    bytes: int | None
    """How much that frees; None if unknown."""
    delete: Callable[[], object]
    """Deletes it, unless it is now kept. Being killed in the middle does no harm: the next call continues."""


Find = Callable[[Path, Retention], Iterator[Waste]]
"""Finds waste. A UserError or an OSError says that the search failed."""
