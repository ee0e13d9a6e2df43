"""The journal of a run: what happened, on disk before it is sent to MLflow. Does not import MLflow.

``client.py`` appends JSON lines, ``recorder.py`` reads and sends them. Appending is one ``write`` to the page cache,
which survives the process and never waits. It is not flushed to the disk: what is lost when the machine crashes is
repeated by a training run that resumes from its snapshot (which is flushed).

A line is the CRC-32 of the message in hexadecimal digits, then the message as JSON.
Every line also begins with a newline, so that one cut short by a full disk or a crash damages no other; readers skip
what is not a message, and the sender reports it. A file next to the journal holds what MLflow has acknowledged. A
journal that MLflow has in full is deleted, except that of a training run that may be resumed.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from plm_core.files import atomic_text
from plm_core.shared.paths import JOURNALS

FORMAT = 2
"""Written in the first message."""

LIMIT_BYTES = 256 << 20
"""The maximum size of a journal: a million reports of a training run, or the system metrics of 90 days."""

KEPT_S = 30 * 86400.0
"""How long the journal of an unfinished training run is kept so that it can resume."""

WRITER, SENDER = 0, 1
"""The bytes of the file that are locked by the process of the run, and by the one that is sending it. These locks
(fcntl, not flock) end with the process, even if it has forked."""

FIELDS: dict[str, dict[str, type]] = {
    "open": {"name": str, "params": dict, "inputs": dict, "tags": dict, "start_time": int},
    "metrics": {"points": list},
    "tags": {"tags": dict},
    "checkpoint": {"path": str, "digest": str, "points": list},
    "checkpoint_metrics": {"digest": str, "points": list},
    "end": {"status": str, "time": int},
}
"""The kinds of messages, and what each must hold. A resumed training run opens its run again."""

POINT: tuple[Any, ...] = (str, (int, float), int, int)
"""A point: name, value, milliseconds since 1970, step."""


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
    """One run's file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.key = path.stem
        """What the run is tagged with, so that it is never created twice."""
        self._sent = path.with_suffix(".sent")
        self._opening = dict[str, Any]()
        self._held = set[int]()

    @classmethod
    def new(cls, name: str) -> Self:
        """An empty journal, which this process writes; names sort by time. Raises OSError."""
        JOURNALS.mkdir(parents=True, exist_ok=True)
        kind = re.sub(r"[^\w.-]+", "-", name)
        path = path_of(f"{milliseconds()}-{kind}-{secrets.token_hex(4)}")
        begun = path.with_suffix(".new")
        made = cls(path, os.open(begun, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644))
        # It is renamed once it is locked, because an unlocked journal is that of a run which has ended.
        made.lock(WRITER)
        begun.rename(path)
        return made

    @classmethod
    def existing(cls, path: Path) -> Self:
        """Open an existing journal. Raises OSError."""
        return cls(path, os.open(path, os.O_RDWR | os.O_APPEND))

    def lock(self, which: int, wait: bool = False) -> bool:
        """Become the journal's ``WRITER`` or ``SENDER`` until ``unlock`` or the end; False when another process is."""
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, which)
        except (BlockingIOError, PermissionError):
            return False
        self._held.add(which)
        return True

    def unlock(self, which: int) -> None:
        """Release this role to another process."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, which)
        self._held.discard(which)

    def written(self) -> bool:
        """Whether a running process writes it, this one or another."""
        return WRITER in self._held or held(self.descriptor, WRITER)

    @property
    def on_disk(self) -> bool:
        """Whether its path still leads to it; not after it is sent, nor if it is a stand-in because of a full disk."""
        # Links are not counted, because a copy of the checkout by `cp -al` has one too.
        with contextlib.suppress(OSError):
            return os.path.samestat(self.path.stat(), os.fstat(self.descriptor))
        return False

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return os.fstat(self.descriptor).st_size

    def append(self, message: Mapping[str, object]) -> None:
        """Add a line. Raises OSError: the disk is full, or the journal is."""
        line = b"\n" + line_of(message)
        if self.size + len(line) > LIMIT_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.path))
        if os.write(self.descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def messages(self, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        """The messages from an offset on, each with the offset of its line's end."""
        for line, end in self._lines(offset):
            if (message := parsed(line)) is not None:
                yield message, end

    def damaged(self) -> int:
        """The number of lines that are not messages, including an unfinished last one."""
        count = whole = 0
        for line, whole in self._lines():  # noqa: B007 where the last one ends
            count += bool(line) and parsed(line) is None
        return count + (whole < self.size)

    def _lines(self, offset: int = 0) -> Iterator[tuple[bytes, int]]:
        """The whole lines from an offset on, each with the offset of its end."""
        rest = b""
        while chunk := os.pread(self.descriptor, 1 << 20, offset + len(rest)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                offset += len(line) + 1
                yield line, offset

    def opening(self) -> dict[str, Any]:
        """Its first message, ``open``; empty if it does not exist yet or is damaged."""
        if not self._opening:
            first = next(self.messages(), ({}, 0))[0]
            self._opening = first if first.get("kind") == "open" else {}
        return self._opening

    def ending(self, more: Iterable[Mapping[str, Any]] = ()) -> tuple[str | None, int]:
        """The status that the run ended with, None if none was written, and when that was (milliseconds since 1970).

        ``more`` are messages after those of the journal.
        """
        status = None
        when = os.fstat(self.descriptor).st_mtime_ns // 1_000_000
        for message in itertools.chain((message for message, _ in self.messages()), more):
            if message["kind"] == "end":
                status, when = message["status"], message["time"]
            elif message["kind"] == "open":
                status = None
        return status, when

    def points(self) -> set[tuple[str, int]]:
        """The points (name, step) of its curves."""
        metrics = (message for message, _ in self.messages() if message["kind"] == "metrics")
        return {(name, step) for message in metrics for name, _, _, step in message["points"]}

    def sent(self) -> Sent:
        """What MLflow has; nothing if that is not known, because everything can be sent again."""
        try:
            sent = Sent(**json.loads(self._sent.read_text()))
            # After a crash of the machine the journal may be shorter than it was.
            return sent if sent.offset <= self.size else Sent(sent.run)
        except (OSError, ValueError, TypeError):
            return Sent()

    def acknowledge(self, sent: Sent) -> None:
        """Remember what MLflow has; if the disk is full, it is sent again."""
        with contextlib.suppress(OSError):
            atomic_text(self._sent, json.dumps(asdict(sent)) + "\n")

    def outdated(self) -> bool:
        """Whether it is too old to wait for its training run to resume."""
        return time.time() - os.fstat(self.descriptor).st_mtime > KEPT_S

    def discard(self) -> None:
        """Delete it: MLflow has it all."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self._sent.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, which releases its locks."""
        os.close(self.descriptor)


def held(descriptor: int, byte: int) -> bool:
    """Whether another process has locked this byte of a file; only queried, because trying would lock others out."""
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return struct.unpack("hhqqi", fcntl.fcntl(descriptor, fcntl.F_GETLK, lock))[0] != fcntl.F_UNLCK


def line_of(message: Mapping[str, object]) -> bytes:
    """The line of a message, in a journal or on its way to the process that sends it."""
    text = json.dumps(message, default=str).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def parsed(line: bytes) -> dict[str, Any] | None:
    """The message on a line; None for one that was cut short or damaged."""
    checksum, _, text = line.partition(b" ")
    try:
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        message = json.loads(text)
        fields = FIELDS[message["kind"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = all(isinstance(message.get(name), kind) for name, kind in fields.items())
    whole = whole and message.get("status", "KILLED") in ("FINISHED", "FAILED", "KILLED")
    return message if whole and all(map(_is_point, message.get("points", ()))) else None


def _is_point(point: object) -> bool:
    return isinstance(point, list) and len(point) == len(POINT) and all(map(isinstance, point, POINT))


def milliseconds() -> int:
    """The time in milliseconds since 1970, as MLflow counts."""
    return time.time_ns() // 1_000_000


def path_of(key: str) -> Path:
    """The path of the journal with this key."""
    return JOURNALS / f"{key}.jsonl"


def unfinished(training: str) -> Journal | None:
    """The journal of the training run with this digest, if it did not finish; this process writes it from now on."""
    for path in sorted(JOURNALS.glob("*.jsonl"), reverse=True):
        with contextlib.suppress(OSError):
            journal = Journal.existing(path)
            opening = journal.opening()
            known = opening.get("format") == FORMAT and opening.get("training") == training
            goes_on = known and journal.ending()[0] != "FINISHED"
            if goes_on and journal.lock(WRITER):
                return journal
            journal.close()
    return None
