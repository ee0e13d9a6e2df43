"""The journals of this checkout as JSON: ``python -m tasks.journals``. `plm doctor` and `plm gc` ask it."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from plm_core.config import UserError
from plm_core.shared.paths import JOURNALS
from tasks.tracking.journal import Journal, parsed
from tasks.tracking.service import Service, store


@dataclass(frozen=True)
class State:
    """How a journal stands."""

    path: str
    key: str
    name: str
    """Of its run; empty when its first line cannot be read."""
    training: bool
    """Whether it is kept after an interruption, for its training to go on."""
    living: bool
    """Whether the process whose run it is lives."""
    sent: bool
    """Whether MLflow has all of it, and the end of its run."""
    sender: str | None
    """What the living recorder that sends it says is wrong, empty for nothing; None when there is no recorder."""
    damaged: list[int]
    """The numbers (from 1) of the lines that cannot be read."""


def state(path: Path) -> State:
    """Look at a journal without changing it. Raises OSError: it is gone, or cannot be read."""
    journal = Journal.existing(path)
    try:
        living = journal.written()
        lines = path.read_bytes().split(b"\n")
        if living:
            lines.pop()  # it may be writing it
        opening = journal.opening()
        sent = journal.sent()
        return State(
            path=path.as_posix(),
            key=journal.key,
            name=opening.get("name", ""),
            training=bool(opening.get("training")),
            living=living,
            sent=sent.closed and sent.offset >= journal.size,
            sender=_sender(opening.get("store")),
            damaged=[number for number, line in enumerate(lines, 1) if line.strip() and parsed(line) is None],
        )
    finally:
        journal.close()


def _sender(meant: str | None) -> str | None:
    for each in filter(None, (meant, _own_store())):
        if (holder := Service(each).holder()) is not None:
            return holder.get("says") or ""
    return None


def _own_store() -> str | None:
    with suppress(UserError):
        return store()
    return None


def main() -> None:
    """Print all of them."""
    found = []
    for path in sorted(JOURNALS.glob("*.jsonl")):
        with suppress(OSError):  # it has been sent meanwhile
            found.append(asdict(state(path)))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
