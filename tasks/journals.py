"""The journals of this checkout as JSON: ``python -m tasks.journals``. Used by `plm doctor` and `plm gc`."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.shared.paths import JOURNALS
from tasks.tracking.journal import Journal, parsed
from tasks.tracking.service import Service, store


def state(path: Path) -> dict[str, Any]:
    """Look at a journal without changing it. Raises OSError: it is gone, or cannot be read.

    ``name`` is that of its run, empty if its first line cannot be read. ``training``: whether it is kept after an
    interruption, so that its training run can resume. ``living``: whether the process of its run is alive. ``sent``:
    whether MLflow has all of it, and the end of its run. ``sender``: the problem reported by the recorder that sends
    it, empty if there is none; None if no recorder is running. ``damaged``: the numbers (from 1) of lines that cannot
    be read.
    """
    journal = Journal.existing(path)
    try:
        living = journal.written()
        lines = path.read_bytes().split(b"\n")
        if living:
            lines.pop()  # it may be half written
        opening = journal.opening()
        sent = journal.sent()
        stores = [opening.get("store")]
        with suppress(UserError):
            stores.append(store())
        holders = (Service(each).holder() for each in stores if each)
        return {
            "path": path.as_posix(),
            "key": journal.key,
            "name": opening.get("name", ""),
            "training": bool(opening.get("training")),
            "living": living,
            "sent": sent.closed and sent.offset >= journal.size,
            "sender": next((holder.get("says") or "" for holder in holders if holder is not None), None),
            "damaged": [number for number, line in enumerate(lines, 1) if line.strip() and parsed(line) is None],
        }
    finally:
        journal.close()


def main() -> None:
    """Print the state of every journal."""
    found = []
    for path in sorted(JOURNALS.glob("*.jsonl")):
        with suppress(OSError):  # it has been sent in the meantime
            found.append(state(path))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
