"""``plm backup`` and ``plm restore``: copy what cannot be recomputed to and from a folder or a bucket.

``flows/backupstore.py`` defines where backups are stored, and in which form.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flows import settings
from flows.backupstore import STAMP, Entry, reached
from flows.cache import used
from flows.checkout import only_one
from flows.outcome import UserError
from plm_core.shared import paths
from plm_core.shared.stores import SQLITE, shown

MLFLOW = paths.ARTIFACTS / "mlflow"
"""MLflow's store in a backup, wherever it was; a restore replaces it as a whole."""
FOLDERS = (paths.JOURNALS, paths.IMPORTED, paths.SNAPSHOTS)
"""What else a backup contains; a restore adds the files that are missing here, and in DVC's cache."""
SWEPT = ("*/sweep.html", f"*/{paths.TRIALS}", f"*/{paths.DIFFERENCE}", "*/trials/*.log")
"""What it contains of sweeps. Not their state, which needs Git's references to their files and experiments."""
BESIDE = (Path("params.yaml"), Path("dvc.lock"))
"""Files that a restore writes under another name if the checkout has its own."""


@dataclass(frozen=True)
class Summary:
    """What was backed up or restored."""

    name: str
    files: int
    size: int
    """The bytes of all its files."""
    moved: int
    """The bytes that had to be copied."""
    notes: list[str]


def backup(root: Path, target: str, keep: int | None = None) -> Summary:
    """Copy what cannot be recomputed; files that the last backup already has are not copied again.

    Args:
        root: The checkout.
        target: A folder, or an address that fsspec knows, such as ``s3://bucket/folder``.
        keep: Delete all but the newest ``keep`` backups; None keeps all.

    Raises:
        UserError: the target cannot be written, or ``params.yaml`` cannot be used.
    """
    with reached(target) as store, tempfile.TemporaryDirectory() as scratch:
        wanted = dict(_files(root, Path(scratch)))
        results, notes = _cached(root)
        wanted |= {path.relative_to(root).as_posix(): path for path in results}
        stored = store.sizes()
        before = store.read(store.names()[-1]) if store.names() else {}
        before = {name: entry for name, entry in before.items() if stored.get(entry.sha256) == entry.size}
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
                # A running pipeline deletes what it has sent or replaced; otherwise the target has failed.
                if path.exists():
                    raise
        stamp = store.next_name()
        store.write(stamp, root, entries)
        if keep:
            store.forget(keep)
    if not settings.read(root)[0].uri.startswith(SQLITE):
        notes = ["runs, models and decisions are on the MLflow server: back it up there", *notes]
    return Summary(stamp, len(entries), sum(entry.size for entry in entries.values()), moved, notes)


def restore(root: Path, source: str, at: str = "") -> Summary:
    """Restore a backup. All of it is fetched and compared with its digests before anything changes.

    Args:
        root: The checkout.
        source: Like ``target`` of ``backup``.
        at: The first characters of the backup's name; the newest by default.

    Raises:
        UserError: there is no such backup, it is damaged, or a pipeline runs in the checkout.
    """
    with reached(source) as store, only_one(root):
        names = [name for name in store.names() if name.startswith(at)]
        if not names:
            known = ", ".join(store.names()[-5:]) or "none"
            raise UserError(f"{source}: no backup {at!r}; the newest are: {known}")
        entries = store.read(names[-1])
        (root / paths.ARTIFACTS).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=root / paths.ARTIFACTS) as scratch:
            moved = 0
            for name, entry in entries.items():
                # What is missing here, or belongs to what is replaced as a whole.
                path = Path(name)
                if path.is_relative_to(MLFLOW) or path in BESIDE or not (root / path).exists():
                    store.fetch(entry, Path(scratch) / name)
                    moved += entry.size
            notes = _put_in_place(root, Path(scratch)) + _unused(root, entries)
    return Summary(names[-1], len(entries), sum(entry.size for entry in entries.values()), moved, notes)


def _files(root: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """What to back up, except DVC's cache: each file's name in the checkout, and where to read it."""
    for name in BESIDE:  # copied first, right after `_cached` has looked up what dvc.lock names
        if (root / name).exists():
            yield name.as_posix(), root / name
    uri = settings.read(root)[0].uri
    if uri.startswith(SQLITE) and (database := Path(uri.removeprefix(SQLITE))).exists():
        # Before the files, so that the files copied afterwards include all that it names.
        changed = database.stat().st_mtime_ns  # before the copy, so that the copy is not older than this
        with contextlib.closing(sqlite3.connect(database)) as live, sqlite3.connect(scratch / "db") as copy:
            live.backup(copy)
        os.utime(scratch / "db", ns=(0, changed))
        yield (MLFLOW / database.name).as_posix(), scratch / "db"
        for path in _below(database.parent / "artifacts"):
            yield (MLFLOW / path.relative_to(database.parent)).as_posix(), path
    for folder in FOLDERS:
        for path in _below(root / folder):
            yield path.relative_to(root).as_posix(), path
    for pattern in SWEPT:
        for path in (root / paths.SWEEPS).glob(pattern):
            yield path.relative_to(root).as_posix(), path


def _below(folder: Path) -> list[Path]:
    """The files in a folder; folders that disappear in the meantime are skipped."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    files = (Path(where, name) for where, _, names in os.walk(folder, onerror=failed) for name in names)
    return sorted(path for path in files if path.is_file())


def _cached(root: Path) -> tuple[list[Path], list[str]]:
    """The cached results that ``dvc.lock`` names, DVC's records of stages that ran, and a note on what is missing."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    with contextlib.closing(Repo(str(root))) as repo:
        cache = repo.cache.local
        try:
            objects = [Path(cache.oid_to_path(name)) for name in used(repo)]
        except DvcException as error:
            raise UserError(f"{root / 'dvc.yaml'}: {error}") from error
        records = _below(Path(repo.stage_cache.cache_dir))
    found = sorted(path for path in [*objects, *records] if path.is_file())
    inside = [path for path in found if path.is_relative_to(root)]
    left = len(found) - len(inside)
    note = f"DVC's cache is outside the checkout ({cache.path}): {left:,} result files are not in the backup; "
    return inside, [f"{note}back it up there"] if left else []


def _put_in_place(root: Path, scratch: Path) -> list[str]:
    """Move what was fetched into the checkout; returns what became of the files that were there."""
    notes = []
    if (scratch / MLFLOW).exists():
        if (root / MLFLOW).exists():
            aside = root / f"{MLFLOW}.{datetime.now(UTC):{STAMP}}"
            (root / MLFLOW).rename(aside)
            notes.append(f"the previous {MLFLOW} is now {aside.relative_to(root)}; delete it when all is well")
        (scratch / MLFLOW).rename(root / MLFLOW)
    for name in BESIDE:
        if not (scratch / name).exists():
            continue
        if not (root / name).exists():
            _move(scratch / name, root / name)
        elif (root / name).read_bytes() != (scratch / name).read_bytes():
            _move(scratch / name, root / f"{name}.restored")
            notes.append(f"{name} differs; the backup's is {name}.restored")
    for path in _below(scratch):
        there = root / path.relative_to(scratch)
        if not there.exists():
            _move(path, there)
    return [*notes, "`dvc checkout` restores the results that dvc.lock records"]


def _move(path: Path, there: Path) -> None:
    """Move a file, to another file system too, where a kill leaves no part of it."""
    there.parent.mkdir(parents=True, exist_ok=True)
    part = there.with_name(f"{there.name}.part")
    shutil.move(path, part)
    part.rename(there)


def _unused(root: Path, names: Iterable[str]) -> list[str]:
    """What to do if the restored registry is not the one that is used here."""
    try:
        uri = settings.read(root)[0].uri
    except UserError as error:
        return [str(error)]
    used = Path(uri.removeprefix(SQLITE)).resolve()
    return [
        f"the registry is in {name}, which is not in use: tracking.uri or MLFLOW_TRACKING_URI is {shown(uri)}; "
        f"set it to {SQLITE}{name} to use what was restored"
        for name in names
        if Path(name).parent == MLFLOW and (root / name).resolve() != used
    ]
