"""The journal of a run: what happened, on disk before MLflow hears of it. Knows no MLflow.

``tasks/seam/tracking.py`` appends JSON lines, ``tasks/seam/recorder.py`` reads them and sends them. Appending is one
``write`` to the page cache: it outlives any process, and waits for nobody. It is not flushed to the disk: what a crash
of the machine takes, a training that goes on from its snapshot (which is flushed) says again.

A file is whole lines; one that a full disk or a crash cut short is skipped by every reader. Beside it lies what
MLflow has acknowledged. A file that MLflow has whole is deleted, but that of a training which may go on is kept.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from plm_core.files import atomic_text
from tasks.seam.paths import JOURNALS

LIMIT_BYTES = 256 << 20
"""A journal takes no more than this: a million reports of a training, or the system metrics of 90 days."""

KEPT_S = 30 * 86400.0
"""How long the journal of a training that did not finish is kept for it to go on."""


@dataclass(frozen=True)
class Sent:
    """What MLflow has acknowledged."""

    run: str | None = None
    """The id of the run, once it exists."""
    offset: int = 0
    """Bytes of the journal that it has."""
    closed: bool = False
    """Whether the run has the status of its end."""


class Journal:
    """One run's file. Who holds its lock may send it; a stage shares the descriptor, so the lock, with its recorder."""

    def __init__(self, path: Path, descriptor: int, torn: bool = True) -> None:
        self.path, self.descriptor = path, descriptor
        self._torn = torn
        """Whether the last line may lack its end."""

    @classmethod
    def new(cls, name: str) -> Self:
        """An empty journal; names sort by time. Raises OSError."""
        JOURNALS.mkdir(parents=True, exist_ok=True)
        kind = re.sub(r"[^\w.-]+", "-", name)
        path = path_of(f"{time.time_ns() // 1_000_000}-{kind}-{secrets.token_hex(4)}")
        made = cls(path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644), torn=False)
        made.lock(wait=False)
        return made

    @classmethod
    def existing(cls, path: Path) -> Self:
        """A journal that lies there. Raises OSError."""
        return cls(path, os.open(path, os.O_RDWR | os.O_APPEND))

    @property
    def key(self) -> str:
        """What the run is tagged with, so that it is never created twice."""
        return self.path.stem

    def lock(self, wait: bool) -> bool:
        """Take the lock, which lasts as long as the descriptor; False when another holds it or has sent the file."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return self.on_disk

    @property
    def on_disk(self) -> bool:
        """Whether the file can be found; not once it is sent, nor when it is only a memory of a full disk."""
        return os.fstat(self.descriptor).st_nlink > 0

    def append(self, message: Mapping[str, object]) -> None:
        """Add a line. Raises OSError: the disk is full, or the journal is."""
        line = b"\n" * self._torn + json.dumps(message, default=str).encode() + b"\n"
        if os.fstat(self.descriptor).st_size + len(line) > LIMIT_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.path))
        written = os.write(self.descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def messages(self, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        """The whole lines from an offset on, each with the offset of its end."""
        rest = b""
        while chunk := os.pread(self.descriptor, 1 << 20, offset + len(rest)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                offset += len(line) + 1
                if (message := parsed(line)) is not None:
                    yield message, offset

    def ending(self, more: Iterable[Mapping[str, Any]] = ()) -> tuple[str | None, int]:
        """The status that the run ended with, None when nobody said so, and when that was (milliseconds since 1970).

        ``more`` are messages after those of the journal.
        """
        status, when = None, os.fstat(self.descriptor).st_mtime_ns // 1_000_000
        for message in itertools.chain((message for message, _ in self.messages()), more):
            if message["kind"] == "end":
                status, when = message["status"], message["time"]
            elif message["kind"] == "resume":
                status = None
        return status, when

    def points(self) -> set[tuple[str, int]]:
        """The points (name, step) of curves that it has."""
        metrics = (message for message, _ in self.messages() if message["kind"] == "metrics")
        return {(name, step) for message in metrics for name, _, _, step in message["points"]}

    def sent(self) -> Sent:
        """What MLflow has; nothing when that is not known, since all can be sent again."""
        try:
            sent = Sent(**json.loads(self._sent.read_text()))
        except (OSError, ValueError, TypeError):
            return Sent()
        # After a crash of the machine the journal may be shorter than it was.
        return sent if sent.offset <= os.fstat(self.descriptor).st_size else Sent(sent.run)

    def acknowledge(self, sent: Sent) -> None:
        """Remember what MLflow has; when the disk is full, it is sent once more."""
        with contextlib.suppress(OSError):
            atomic_text(self._sent, json.dumps(asdict(sent)) + "\n")

    def discard(self) -> None:
        """Delete it: MLflow has it all."""
        for path in (self.path, self._sent):
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """Let go of the file, and of the lock unless a recorder shares it."""
        os.close(self.descriptor)

    @property
    def _sent(self) -> Path:
        return self.path.with_suffix(".sent")


def parsed(line: bytes) -> dict[str, Any] | None:
    """The message on a line; None for a line that was cut short."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "kind" in message else None


def path_of(key: str) -> Path:
    """Where the journal with this key lies."""
    return JOURNALS / f"{key}.jsonl"


def unfinished(training: str) -> Journal | None:
    """The journal of the training with this digest, if it did not finish."""
    for path in sorted(JOURNALS.glob("*.jsonl"), reverse=True):
        with contextlib.suppress(OSError):
            journal = Journal.existing(path)
            opening = next(journal.messages(), ({}, 0))[0]
            if opening.get("training") == training and journal.ending()[0] != "FINISHED":
                journal.lock(wait=False)  # an old recorder may have it for a moment yet: the new one waits for that
                return journal
            journal.close()
    return None


def waiting(but: Path | None = None) -> Iterator[Journal]:
    """The journals that nobody sends and MLflow has not whole, the oldest first, locked; ``but`` is left out."""
    for path in sorted(JOURNALS.glob("*.jsonl")):
        if path == but:
            continue
        with contextlib.suppress(OSError):
            journal = Journal.existing(path)
            with contextlib.closing(journal):
                if not journal.lock(wait=False):
                    continue
                if not journal.sent().closed:
                    yield journal
                elif time.time() - path.stat().st_mtime > KEPT_S:
                    journal.discard()
