"""``plm backup`` and ``plm restore``: what nothing makes again, in a folder or a bucket.

``files/`` has each file once, under the sha256 of its bytes; ``backups/`` has a list for each backup, which says what
lay where. The list is written last, so that a backup is whole or absent, and every one of them can be restored.
"""

import contextlib
import hashlib
import json
import os
import secrets
import socket
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from flows import settings
from flows.checkout import only_one
from flows.outcome import UserError
from plm_core.shared import paths
from plm_core.shared.stores import SQLITE

FORMAT = 1
MLFLOW = paths.ARTIFACTS / "mlflow"
ADDED = (paths.JOURNALS, paths.IMPORTED, paths.SNAPSHOTS, Path(".dvc/cache"))
"""What a restore adds to where it is missing; MLflow's store is replaced as a whole."""
BESIDE = (Path("params.yaml"), Path("dvc.lock"))
"""What a restore writes under another name where the checkout has its own."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file of a backup."""

    sha256: str
    size: int
    changed: int
    """When it was last written, in nanoseconds since 1970: the same file need not be read again."""


@dataclass(frozen=True)
class Summary:
    """What was backed up or restored."""

    name: str
    files: int
    size: int
    """Bytes of all its files."""
    moved: int
    """Bytes that had to be copied."""
    notes: list[str]


def backup(root: Path, target: str, keep: int | None = None) -> Summary:
    """Copy what nothing makes again; what the last backup has already is not copied again.

    Args:
        root: The checkout.
        target: A folder, or an address that fsspec knows, such as ``s3://bucket/folder``.
        keep: Delete all but so many backups; None keeps all.

    Raises:
        UserError: the target cannot be written, or ``params.yaml`` cannot be used.
    """
    with _reached(target) as store, tempfile.TemporaryDirectory() as scratch:
        wanted = dict(_files(root, Path(scratch)))
        results, notes = _cached(root)
        wanted |= {path.relative_to(root).as_posix(): path for path in results}
        before = store.read(store.names()[-1]) if store.names() else {}
        entries: dict[str, Entry] = {}
        moved = 0
        for name, path in wanted.items():
            try:
                found = path.stat()
                known = before.get(name)
                if known is None or (known.size, known.changed) != (found.st_size, found.st_mtime_ns):
                    known = Entry(*store.put(path), found.st_mtime_ns)
                    moved += known.size
                entries[name] = known
            except FileNotFoundError:
                # A pipeline that runs here discards what it has sent or replaced; else it is the target that fails.
                if path.exists():
                    raise
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        store.write(stamp, root, entries)
        if keep:
            store.forget(keep)
    if not settings.read(root)[0].uri.startswith(SQLITE):
        notes = ["runs, models and decisions are on the MLflow server: back it up there", *notes]
    return Summary(stamp, len(entries), sum(entry.size for entry in entries.values()), moved, notes)


def restore(root: Path, source: str, at: str = "") -> Summary:
    """Bring a backup back. All of it is fetched and compared with its digests before anything changes.

    Args:
        root: The checkout.
        source: As ``target`` of ``backup``.
        at: The beginning of the backup's name; the newest by default.

    Raises:
        UserError: there is no such backup, it is damaged, or a pipeline runs in the checkout.
    """
    with _reached(source) as store, only_one(root):
        names = [name for name in store.names() if name.startswith(at)]
        if not names:
            known = ", ".join(store.names()[-5:]) or "none"
            raise UserError(f"{source}: no backup {at!r}; the newest ones are: {known}")
        entries = store.read(names[-1])
        (root / paths.ARTIFACTS).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=root / paths.ARTIFACTS) as scratch:
            moved = 0
            for name, entry in entries.items():
                if _needed(root, Path(name)):
                    store.fetch(entry, Path(scratch) / name)
                    moved += entry.size
            notes = _put_in_place(root, Path(scratch))
    return Summary(names[-1], len(entries), sum(entry.size for entry in entries.values()), moved, notes)


def _files(root: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """What is to be backed up, but for DVC's cache: its name in the checkout, and where to read it."""
    for name in BESIDE:  # copied first, right after `_cached` has looked at what dvc.lock names
        if (root / name).exists():
            yield name.as_posix(), root / name
    uri = settings.read(root)[0].uri
    if uri.startswith(SQLITE) and (database := Path(uri.removeprefix(SQLITE))).exists():
        # Before the files, so that all it names is among the files that are looked at afterwards.
        changed = database.stat().st_mtime_ns  # before the copy, which then is no older than it says
        with contextlib.closing(sqlite3.connect(database)) as live, sqlite3.connect(scratch / "db") as copy:
            live.backup(copy)
        os.utime(scratch / "db", ns=(0, changed))
        yield (MLFLOW / database.name).as_posix(), scratch / "db"
        for path in _below(database.parent / "artifacts"):
            yield (MLFLOW / path.relative_to(database.parent)).as_posix(), path
    for folder in ADDED[:-1]:
        for path in _below(root / folder):
            yield path.relative_to(root).as_posix(), path


def _below(folder: Path) -> list[Path]:
    """The files in a folder; what vanishes meanwhile has none."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    files = (Path(where, name) for where, _, names in os.walk(folder, onerror=failed) for name in names)
    return sorted(path for path in files if path.is_file())


def _cached(root: Path) -> tuple[list[Path], list[str]]:
    """What DVC's cache has of the results in ``dvc.lock``, and its records of stages that ran; and what is left out."""
    from dvc.repo import Repo

    with contextlib.closing(Repo(str(root))) as repo:
        cache = repo.cache.local
        used = {found.value for of in repo.used_objs().values() for found in of if found.value}
        objects = [Path(cache.oid_to_path(value)) for value in used]
        records = _below(Path(repo.stage_cache.cache_dir))
    found = sorted(path for path in [*objects, *records] if path.is_file())
    inside = [path for path in found if path.is_relative_to(root)]
    left = len(found) - len(inside)
    note = f"DVC's cache lies outside the checkout ({cache.path}): {left:,} files of results are not in the backup; "
    return inside, [f"{note}back it up there"] if left else []


def _needed(root: Path, path: Path) -> bool:
    """Whether a file has to be fetched; but for what is replaced as a whole, only what is missing."""
    return path.is_relative_to(MLFLOW) or path in BESIDE or not (root / path).exists()


def _put_in_place(root: Path, scratch: Path) -> list[str]:
    """Let what was fetched be the checkout's; returns what became of what was there before."""
    notes = []
    if (scratch / MLFLOW).exists():
        if (root / MLFLOW).exists():
            aside = root / f"{MLFLOW}.{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
            (root / MLFLOW).rename(aside)
            notes.append(f"what was in {MLFLOW} is in {aside.relative_to(root)} now; delete it when all is well")
        (scratch / MLFLOW).rename(root / MLFLOW)
    for name in BESIDE:
        if not (scratch / name).exists():
            continue
        if not (root / name).exists():
            (scratch / name).rename(root / name)
        elif (root / name).read_bytes() != (scratch / name).read_bytes():
            (scratch / name).rename(root / f"{name}.restored")
            notes.append(f"{name} differs; the backup's is {name}.restored")
    for path in [path for folder in ADDED for path in _below(scratch / folder)]:
        there = root / path.relative_to(scratch)
        there.parent.mkdir(parents=True, exist_ok=True)
        path.rename(there)
    return [*notes, "`dvc checkout` brings the results of dvc.lock back"]


@contextlib.contextmanager
def _reached(address: str) -> Iterator["Store"]:
    try:
        import fsspec

        yield Store(*fsspec.core.url_to_fs(address))
    except UserError:
        raise
    except Exception as error:
        # Each file system has errors of its own: those of S3 are no OSErrors.
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
        self._filesystem.invalidate_cache()
        return sorted(Path(path).stem for path in self._filesystem.glob(f"{self._base}/backups/*.json"))

    def read(self, name: str) -> dict[str, Entry]:
        """The files of a backup, by their names in the checkout."""
        found = json.loads(self._filesystem.cat_file(f"{self._base}/backups/{name}.json"))
        if found["format"] != FORMAT:
            raise UserError(f"backup {name}: its format is {found['format']}; expected {FORMAT}, see its `plm` version")
        return {name: Entry(**entry) for name, entry in found["files"].items()}

    def write(self, name: str, root: Path, entries: Mapping[str, Entry]) -> None:
        """Let there be a backup."""
        files = {path: asdict(entry) for path, entry in entries.items()}
        content = {"format": FORMAT, "host": socket.gethostname(), "checkout": str(root), "files": files}
        with self._written(f"backups/{name}.json") as file:
            file.write(json.dumps(content, indent=1).encode())

    def put(self, path: Path) -> tuple[str, int]:
        """Copy a file; its sha256 and size, of the very bytes that were copied."""
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
        """Delete all but the newest backups, and the files that none of them has."""
        for name in self.names()[:-keep]:
            self._filesystem.rm_file(f"{self._base}/backups/{name}.json")
        needed = {self._place(entry.sha256) for name in self.names() for entry in self.read(name).values()}
        for path in self._filesystem.find(f"{self._base}/files"):
            if path not in needed:
                self._filesystem.rm_file(path)

    def _place(self, digest: str) -> str:
        return f"{self._base}/files/{digest[:2]}/{digest}"

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[IO[bytes]]:
        part = f"{self._base}/{name}.part"
        with self._filesystem.open(part, "wb") as file:
            yield file
        self._filesystem.mv(part, f"{self._base}/{name}")
