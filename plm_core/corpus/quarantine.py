"""Records that cannot be used, with the place of each and the rule that it breaks. Used by sources and ingest."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from plm_core.files import atomic_file

EXCERPT = 200
"""The most characters of an excerpt, and of a detail."""


class Refused(Exception):
    """A record breaks a rule; the caller that knows its place makes a ``Quarantined`` of it."""

    def __init__(self, reason: str, detail: str, lost_bytes: int = 0) -> None:
        """``lost_bytes``: at least so many of the file are not read either, if the record stands for the rest of it."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.lost_bytes = lost_bytes


@dataclass(frozen=True)
class Quarantined:
    """A record that was not used; all text is printable."""

    place: str
    """``file:line``: the line on which the record begins; for Parquet, the row, from 1."""
    reason: str
    """The short name of the rule, such as ``broken_json``."""
    detail: str
    """What was found and what was expected, at most 200 characters."""
    excerpt: str
    """The record's beginning, at most 200 characters."""
    lost_bytes: int = 0
    """At least so many bytes of the file are not read, if the record stands for all the rest of it."""


def quarantined(place: str, refused: Refused, head: bytes | str) -> Quarantined:
    """The record at ``place``, which begins with ``head``, for the reason of ``refused``."""
    text = head if isinstance(head, str) else head.decode("utf-8", errors="backslashreplace")
    # A file name may contain anything, but is needed whole to find the file.
    detail = _shortened(refused.detail)
    return Quarantined(printable(place), refused.reason, detail, _shortened(text), refused.lost_bytes)


@contextlib.contextmanager
def quarantine_writer(path: Path) -> Iterator[Callable[[Quarantined], object]]:
    """Yield a function that writes a record; they become the JSON lines of ``path`` when the block succeeds."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield lambda record: file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def printable(text: str) -> str:
    """The text with unprintable characters, such as bytes that are not UTF-8, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shortened(text: str) -> str:
    """The text printable and shortened; only the beginning of a long one is read."""
    shown = printable(text[: EXCERPT + 1])
    return shown if len(shown) <= EXCERPT else f"{shown[: EXCERPT - 1]}…"
