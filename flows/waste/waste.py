"""Something that the rules do not keep. Used by every store of this folder, and by ``flows/retention.py``."""

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
    """How much that frees; None where it cannot be told."""
    delete: Callable[[], object]
    """Deletes it, unless it is kept by now. To be killed in the middle does no harm: the next time goes on."""


Find = Callable[[Path, Retention], Iterator[Waste]]
"""Looks for waste. A UserError or an OSError says that it could not."""
