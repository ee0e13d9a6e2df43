"""A folder or a bucket with backups. Used by ``flows/backup.py``.

``files/`` holds each file once, under the sha256 of its bytes; ``backups/`` holds a list per backup, which says what
was where. The list is written last, so a backup is complete or absent, and every backup can be restored.
"""

import bisect
import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from flows.cache import DAY_S
from flows.outcome import UserError

FORMAT = 1
CHUNK = 1 << 20
STAMP = "%Y-%m-%dT%H-%M-%SZ"
"""The format of backup names, which sort by time."""


@dataclass(frozen=True)
class Entry:
    """A file in a backup."""

    sha256: str
    size: int
    changed: int
    """When it was last written, in nanoseconds since 1970; an unchanged file is not read again."""


@contextlib.contextmanager
def reached(address: str) -> Iterator["Store"]:
    """The backups in a folder or at an address. Raises UserError: they cannot be read or written."""
    try:
        import fsspec

        yield Store(*fsspec.core.url_to_fs(address))
    except UserError:
        raise
    except Exception as error:
        # Each file system has its own errors: those of S3 are not OSErrors.
        if not isinstance(error, OSError | ImportError | ValueError) and "://" not in address:
            raise
        raise UserError(f"{address}: {' '.join(str(error).split())}") from error


class Store:
    """A folder or bucket with backups."""

    def __init__(self, filesystem: Any, base: str) -> None:
        self._filesystem = filesystem
        self._base = base.rstrip("/")
        for folder in ("files", "backups"):
            filesystem.makedirs(f"{self._base}/{folder}", exist_ok=True)

    def names(self) -> list[str]:
        """The backups, the oldest first."""
        return sorted(Path(path).stem for path in self._found("backups") if path.endswith(".json"))

    def next_name(self) -> str:
        """The name of a backup made now. It sorts after all others, even if the clock was ahead once."""
        now = f"{datetime.now(UTC):{STAMP}}"
        newest = max(self.names(), default="")
        return now if now > newest else f"{datetime.strptime(newest, STAMP) + timedelta(seconds=1):{STAMP}}"

    def sizes(self) -> dict[str, int]:
        """The bytes of each file, by its sha256."""
        return {Path(path).name: info["size"] for path, info in self._found("files").items()}

    def read(self, name: str) -> dict[str, Entry]:
        """The files of a backup, by their names in the checkout."""
        found = json.loads(self._filesystem.cat_file(f"{self._base}/backups/{name}.json"))
        if found["format"] != FORMAT:
            raise UserError(f"backup {name}: format {found['format']}; expected {FORMAT}; use the `plm` that wrote it")
        return {name: Entry(**entry) for name, entry in found["files"].items()}

    def write(self, name: str, root: Path, entries: Mapping[str, Entry]) -> None:
        """Write the list of a backup."""
        files = {path: asdict(entry) for path, entry in entries.items()}
        content = {"format": FORMAT, "host": socket.gethostname(), "checkout": str(root), "files": files}
        with self._written(f"backups/{name}.json") as file:
            file.write(json.dumps(content, indent=1).encode())

    def put(self, path: Path) -> tuple[str, int]:
        """Copy a file; returns the sha256 and size of the bytes that were copied."""
        digest = hashlib.sha256()
        part = f"{self._base}/files/{secrets.token_hex(8)}.part"
        with path.open("rb") as file, self._filesystem.open(part, "wb") as copy:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                copy.write(chunk)
            size = file.tell()
        place = self._place(digest.hexdigest())
        self._filesystem.makedirs(place.rpartition("/")[0], exist_ok=True)
        self._filesystem.mv(part, place)
        return digest.hexdigest(), size

    def fetch(self, entry: Entry, path: Path) -> None:
        """Copy a file back.

        Raises:
            UserError: its bytes are not those that were backed up.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with self._filesystem.open(self._place(entry.sha256), "rb") as file, path.open("wb") as copy:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                copy.write(chunk)
        if digest.hexdigest() != entry.sha256:
            raise UserError(f"{self._place(entry.sha256)}: damaged; restore another backup. Nothing has been changed")

    def forget(self, keep: int) -> None:
        """Delete all but the newest backups, and the files that none of them needs.

        Another backup may be running whose list is not written yet. What it may have copied, or reused from the backup
        that was the newest when it began, is kept for a day.
        """
        names = self.names()
        begun = bisect.bisect(names, f"{datetime.now(UTC) - timedelta(days=1):{STAMP}}")
        spared = {*names[-keep:], *names[max(0, begun - 1) :]}
        needed = {self._place(entry.sha256) for name in spared for entry in self.read(name).values()}
        for name in names[:-keep]:
            self._filesystem.rm_file(f"{self._base}/backups/{name}.json")
        parts = [path for path in self._found("backups") if path.endswith(".part")]
        for path in [*self._found("files"), *parts]:
            if path not in needed and self._old(path):
                self._filesystem.rm_file(path)

    def _found(self, folder: str) -> dict[str, Any]:
        """What is in a folder now, by path; not by a pattern, which the path of the store itself may look like."""
        self._filesystem.invalidate_cache()
        return dict(self._filesystem.find(f"{self._base}/{folder}", detail=True))

    def _old(self, path: str) -> bool:
        """Whether a file was written more than a day ago; False if the file system does not know."""
        try:
            return bool(self._filesystem.modified(path).timestamp() < time.time() - DAY_S)
        except (NotImplementedError, FileNotFoundError):
            return False

    def _place(self, digest: str) -> str:
        return f"{self._base}/files/{digest[:2]}/{digest}"

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[IO[bytes]]:
        part = f"{self._base}/{name}.part"
        with self._filesystem.open(part, "wb") as file:
            yield file
        self._filesystem.mv(part, f"{self._base}/{name}")
