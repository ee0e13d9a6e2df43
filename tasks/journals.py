"""The journals of this checkout as JSON: ``python -m tasks.journals``. Used by `plm doctor` and `plm gc`."""

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
    """The state of a journal."""

    path: str
    key: str
    name: str
    """The name of its run; empty if its first line cannot be read."""
    training: bool
    """Whether it is kept after an interruption, so that its training run can resume."""
    living: bool
    """Whether the process of its run is alive."""
    sent: bool
    """Whether MLflow has all of it, and the end of its run."""
    sender: str | None
    """The problem reported by the recorder that sends it, empty if there is none; None if no recorder is running."""
    damaged: list[int]
    """The numbers (from 1) of the lines that cannot be read."""


def state(path: Path) -> State:
    """Look at a journal without changing it. Raises OSError: it is gone, or cannot be read."""
    journal = Journal.existing(path)
    try:
        living = journal.written()
        lines = path.read_bytes().split(b"\n")
        if living:
            lines.pop()  # it may be half written
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
    """Print the state of every journal."""
    found = []
    for path in sorted(JOURNALS.glob("*.jsonl")):
        with suppress(OSError):  # it has been sent in the meantime
            found.append(asdict(state(path)))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
