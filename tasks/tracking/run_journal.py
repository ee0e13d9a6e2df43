"""The record of a run: one file of JSON lines, which its process writes and ``tasks/publishing`` sends to MLflow.

A message is one ``write`` to the page cache, which survives the process and never waits. It is not flushed to the disk:
what is lost when the machine crashes is repeated by a training run that resumes from its snapshot (which is flushed).
The writer holds a lock on the file as long as it lives, so a run whose file is free has ended: as its last message
says, or killed. A file that MLflow has in full is deleted, except that of a training run that may be resumed.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from plm_core.shared.files import try_lock
from plm_core.shared.paths import JOURNALS

JOURNAL_TAG = "plm.journal"
"""The tag of a run in MLflow that holds the key of its journal."""


class Journal:
    """A journal that this process writes."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o644)
        # A lock belongs to all processes that have inherited the open file: it must end with this one.
        os.register_at_fork(after_in_child=self.close)

    @classmethod
    def new(cls, folder: Path, name: str) -> Self:
        """An empty journal; names sort by time. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        kind = re.sub(r"[^\w.-]+", "-", name)
        path = folder / f"{milliseconds()}-{kind}-{secrets.token_hex(4)}.jsonl"
        # It gets its name once it is locked, because an unlocked journal is that of a run which has ended.
        made = cls(path.with_suffix(".new"), os.O_CREAT | os.O_EXCL)
        try_lock(made._descriptor)
        made.path = made.path.rename(path)
        return made

    @classmethod
    def existing(cls, path: Path) -> Self | None:
        """A journal that is to be continued; None if another process writes it. Raises OSError."""
        journal = cls(path)
        if not try_lock(journal._descriptor):
            journal.close()
            return None
        # An unfinished last line would damage the next one.
        os.truncate(journal._descriptor, path.read_bytes().rfind(b"\n") + 1)
        return journal

    def append(self, message: Mapping[str, object]) -> None:
        """Add a line. Raises OSError: the disk is full."""
        line = json.dumps(message, default=str).encode() + b"\n"
        size = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, line) < len(line):
            os.truncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file, which releases its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def begin_message(name: str, store: str | None, tags: Mapping[str, str], **content: object) -> dict[str, object]:
    """The message that a run has begun, or continues; ``store`` names the MLflow that it is meant for. The ``content``
    is its ``params``, ``inputs``, ``parent`` and ``training``, as in ``tracked``."""
    begun = {"name": name, "store": store, "tags": tags, "start_time": milliseconds(), "params": {}, "inputs": {}}
    return {"kind": "open", **begun, **content}


def points_message(metrics: Mapping[str, float], step: int) -> dict[str, object]:
    """The message with values of metrics at the present time."""
    now = milliseconds()
    return {"kind": "metrics", "points": [(name, float(value), now, step) for name, value in metrics.items()]}


def end_message(status: str) -> dict[str, object]:
    """The message that a run has ended as FINISHED, FAILED or KILLED."""
    return {"kind": "end", "status": status, "time": milliseconds()}


def messages(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """The messages from an offset on, each with the offset of its line's end; one of kind ``damaged`` stands for a line
    that cannot be read. An unfinished last line is left out. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        while (line := file.readline()).endswith(b"\n"):
            offset += len(line)
            yield parse_message(line), offset


def parse_message(line: bytes | str) -> dict[str, Any]:
    """The message on a line, of kind ``damaged`` if it cannot be read."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(message := json.loads(line), dict) and isinstance(message.get("kind"), str):
            return message
    return {"kind": "damaged"}


def first_message(path: Path) -> dict[str, Any]:
    """The first message; empty if it cannot be read. Raises OSError."""
    first, _ = next(messages(path), ({}, 0))
    return first if first.get("kind") == "open" else {}


def end_status(path: Path) -> tuple[str | None, bool]:
    """The status that a run ended with, None if none was written, and whether MLflow has all of it. Raises OSError."""
    status = None
    message: dict[str, Any] = {}
    for message, _ in messages(path):
        status = None if message["kind"] == "open" else message.get("status", status)
    return status, message.get("kind") == "published"


def publisher_of(store: str) -> Path:
    """The file that the publisher for the MLflow of this name locks; its content says what is wrong, if anything is."""
    return JOURNALS / f"{store}.publisher"


def origin(source: str, folder: Path = Path()) -> dict[str, str]:
    """The program, the host, the commit, and whether code or parameters differ from it, as tags of a run.

    What the pipeline writes does not count. The UI shows tags that begin with ``mlflow.`` in columns of their own.
    """
    tags = {"plm.host": socket.gethostname(), "mlflow.source.name": source, "mlflow.source.type": "LOCAL"}

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!artifacts")
    except (OSError, subprocess.CalledProcessError):
        return tags | {"git.dirty": "unknown"}
    commits = {"mlflow.source.git.commit": commit, "git.commit": commit}
    return tags | commits | {"git.dirty": str(bool(changed)).lower()}


def milliseconds() -> int:
    """The time in milliseconds since 1970, as MLflow counts."""
    return time.time_ns() // 1_000_000
