"""``plm backup`` and ``plm restore``: copy what cannot be recomputed to and from a folder or a bucket.

The target is laid out as a remote of DVC, and DVC hashes, copies and compares the files: ``files/`` holds each once,
under the MD5 of its bytes; ``backups/`` holds a manifest per backup, which says what was where. The manifest is written
last, so a backup is complete or absent.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows import flow_configs
from flows.maintenance.output_checks import referenced_objects
from flows.run.checkout import lock_checkout
from plm_core.shared import paths
from plm_core.shared.errors import UserError
from tasks.tracking.mlflow_stores import SQLITE, without_credentials

STAMP = "%Y-%m-%dT%H-%M-%S-%fZ"
"""The format of backup names, which sort by time."""
MLFLOW = paths.ARTIFACTS / "mlflow"
"""MLflow's store in a backup, wherever it was; a restore replaces it as a whole."""
FOLDERS = (paths.JOURNALS, paths.IMPORTED, paths.SNAPSHOTS)
"""What else a backup contains; a restore adds the files that are missing here, and in DVC's cache."""
SWEPT = ("*/sweep.html", f"*/{paths.TRIALS}", f"*/{paths.DIFFERENCE}", "*/trials/*.log")
"""The parts of sweeps that it contains; not their state, which needs Git's references to files and experiments."""
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


class Target:
    """A folder or bucket with backups."""

    def __init__(self, repo: Any) -> None:
        """``repo`` is DVC's, with the target as the remote ``backup``."""
        remote = repo.cloud.get_remote("backup")
        self.repo = repo
        self.fs, self.files = remote.fs, remote.odb
        self._folder = self.fs.join(remote.path, "backups")

    def names(self) -> list[str]:
        """The backups, the oldest first."""
        files = self.fs.find(self._folder) if self.fs.exists(self._folder) else []
        return sorted(Path(path).stem for path in files if path.endswith("Z.json"))

    def path(self, name: str) -> str:
        """Where the manifest of a backup is."""
        return str(self.fs.join(self._folder, f"{name}.json"))

    def manifest(self, name: str) -> dict[str, tuple[str, int]]:
        """The files of a backup: their names in the checkout, with MD5 and size."""
        with self.fs.open(self.path(name), "rb") as file:
            return {path: (digest, size) for path, (digest, size) in json.load(file).items()}

    def digest(self, path: Path) -> str:
        """The MD5 of a local file; DVC remembers that of an unchanged one."""
        from dvc.fs import localfs
        from dvc_data.hashfile.hash import hash_file

        return str(hash_file(str(path), localfs, "md5", state=self.repo.state)[1].value)


@contextlib.contextmanager
def _opened(root: Path, address: str) -> Iterator[Target]:
    """The backups at an address. Raises UserError: they cannot be read or written."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root), config={"remote": {"backup": {"url": address}}}) as repo:
            yield Target(repo)
    except UserError:
        raise
    except Exception as error:
        # Each file system has its own errors: those of S3 are not OSErrors.
        if not isinstance(error, OSError | DvcException) and "://" not in address:
            raise
        raise UserError(f"{address}: {' '.join(str(error).split())}") from error


def backup(root: Path, target: str, keep: int | None = None) -> Summary:
    """Copy what cannot be recomputed and is not in the backups yet.

    Args:
        root: The checkout.
        target: A folder, or an address that a remote of DVC may have, such as ``s3://bucket/folder``.
        keep: Delete all but the newest ``keep`` backups; None keeps all.

    Raises:
        UserError: the target cannot be written, or ``params.yaml`` cannot be used.
    """
    from dvc.fs import localfs

    uri = flow_configs.read_tracking(root)[0].uri
    notes = [] if uri.startswith(SQLITE) else ["runs, models and decisions are on an MLflow server: back them up there"]
    with _opened(root, target) as store, tempfile.TemporaryDirectory() as scratch:
        name = f"{datetime.now(UTC):{STAMP}}"
        if (names := store.names()) and names[-1] >= name:
            raise UserError(f"{target}: backup {names[-1]} is from the future; set the clock, or rename that backup")
        wanted = dict(_files(root, Path(scratch), uri))
        # The results that dvc.lock names, and DVC's records of stages that ran.
        cache = store.repo.cache.local
        objects = (Path(cache.oid_to_path(name)) for name in referenced_objects(store.repo))
        cached = [path for path in objects if path.is_file()] + _below(Path(store.repo.stage_cache.cache_dir))
        wanted |= {path.relative_to(root).as_posix(): path for path in sorted(cached) if path.is_relative_to(root)}
        if left := sum(not path.is_relative_to(root) for path in cached):
            where = f"DVC's cache is outside the checkout ({cache.path})"
            notes.append(f"{where}: {left:,} result files are not in the backup; back them up there")

        there = set(store.files.all())
        manifest: dict[str, tuple[str, int]] = {}
        moved = 0
        for file, path in wanted.items():
            try:
                digest = store.digest(path)
                manifest[file] = digest, path.stat().st_size
                if digest not in there:
                    store.files.add(str(path), localfs, digest)
                    there.add(digest)
                    moved += path.stat().st_size
            except FileNotFoundError:
                # A running pipeline deletes what it has sent or replaced; otherwise the target has failed.
                if path.exists():
                    raise
                manifest.pop(file, None)
        listed = Path(scratch) / "manifest"
        listed.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        store.fs.put_file(str(listed), store.path(name))

        # First the files that no backup needs are deleted, then old backups, whose files thus stay until the next call:
        # another backup that is running, and has no manifest yet, may count on them. What it has copied itself is
        # younger than a day.
        if keep:
            names = store.names()
            needed = {digest for made in names for digest, _ in store.manifest(made).values()}
            for digest in set(store.files.all()) - needed:
                old = store.files.oid_to_path(digest)
                with contextlib.suppress(NotImplementedError, FileNotFoundError):  # not every file system knows ages
                    if store.fs.modified(old).timestamp() < time.time() - flow_configs.DAY_S:
                        store.fs.remove(old)
            for made in names[:-keep]:
                store.fs.remove(store.path(made))
    return Summary(name, len(manifest), sum(size for _, size in manifest.values()), moved, notes)


def restore(root: Path, source: str, at: str = "") -> Summary:
    """Restore a backup. All of it is fetched and compared with its digests before anything changes.

    Args:
        root: The checkout.
        source: Like ``target`` of ``backup``.
        at: The first characters of the backup's name; the newest by default.

    Raises:
        UserError: there is no such backup, it is damaged, or a pipeline runs in the checkout.
    """
    with lock_checkout(root), _opened(root, source) as store:
        names = [name for name in store.names() if name.startswith(at)]
        if not names:
            newest = ", ".join(store.names()[-5:]) or "none"
            raise UserError(f"{source}: no backup {at!r}; the newest are: {newest}")
        manifest = store.manifest(names[-1])
        (root / paths.ARTIFACTS).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=root / paths.ARTIFACTS) as scratch:
            moved = 0
            for name, (digest, size) in manifest.items():
                # What is missing here, or belongs to what is replaced as a whole.
                path = Path(name)
                fetched = Path(scratch) / path
                if path.is_relative_to(MLFLOW) or path in BESIDE or not (root / path).exists():
                    there = store.files.oid_to_path(digest)
                    fetched.parent.mkdir(parents=True, exist_ok=True)
                    store.fs.get_file(there, str(fetched))
                    if store.digest(fetched) != digest:
                        what = "damaged; delete it, and the next backup copies it again. Nothing has been changed"
                        raise UserError(f"{there}: {what}")
                    moved += size
            notes = _put_in_place(root, Path(scratch))

    # The registry may be in another place than the one that is used here.
    try:
        uri = flow_configs.read_tracking(root)[0].uri
    except UserError as error:
        notes.append(str(error))
    else:
        notes += [
            f"the registry is in {name}, which is not in use: tracking.uri or MLFLOW_TRACKING_URI is "
            f"{without_credentials(uri)}; set it to {SQLITE}{name} to use what was restored"
            for name in manifest
            if Path(name).parent == MLFLOW and (root / name).resolve() != Path(uri.removeprefix(SQLITE)).resolve()
        ]
    return Summary(names[-1], len(manifest), sum(size for _, size in manifest.values()), moved, notes)


def _files(root: Path, scratch: Path, uri: str) -> Iterator[tuple[str, Path]]:
    """What to back up, except DVC's cache: each file's name in the checkout, and where to read it."""
    for name in BESIDE:
        if (root / name).exists():  # copied first, so that the cached results are those which this dvc.lock names
            yield name.as_posix(), Path(shutil.copy(root / name, scratch / name))
    if uri.startswith(SQLITE) and (database := Path(uri.removeprefix(SQLITE))).exists():
        # Before the files, so that the files copied afterwards include all that it names.
        with contextlib.closing(sqlite3.connect(database)) as live, sqlite3.connect(scratch / "db") as copy:
            live.backup(copy)
        yield (MLFLOW / database.name).as_posix(), scratch / "db"
        for path in _below(database.parent / "artifacts"):
            yield (MLFLOW / path.relative_to(database.parent)).as_posix(), path
    others = [path for folder in FOLDERS for path in _below(root / folder)]
    others += [path for pattern in SWEPT for path in (root / paths.SWEEPS).glob(pattern)]
    for path in others:
        yield path.relative_to(root).as_posix(), path


def _below(folder: Path) -> list[Path]:
    """The files in a folder; folders that disappear in the meantime are skipped."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    files = (Path(where, name) for where, _, names in os.walk(folder, onerror=failed) for name in names)
    return sorted(path for path in files if path.is_file())


def _put_in_place(root: Path, scratch: Path) -> list[str]:
    """Move what was fetched into the checkout; returns what became of the files that were there."""

    def move(path: Path, there: Path) -> None:
        """Also to another file system, where a kill leaves no part of it."""
        there.parent.mkdir(parents=True, exist_ok=True)
        part = there.with_name(f"{there.name}.part")
        shutil.move(path, part)
        part.rename(there)

    notes = []
    if (scratch / MLFLOW).exists():
        if (root / MLFLOW).exists():
            aside = root / f"{MLFLOW}.{datetime.now(UTC):{STAMP}}"
            (root / MLFLOW).rename(aside)
            notes.append(f"the previous {MLFLOW} is now {aside.relative_to(root)}; delete it when all is well")
        (scratch / MLFLOW).rename(root / MLFLOW)
    for name in BESIDE:
        both = [folder / name for folder in (root, scratch) if (folder / name).exists()]
        if len({path.read_bytes() for path in both}) == 2:
            move(both[1], root / f"{name}.restored")
            notes.append(f"{name} differs; the backup's is {name}.restored")
    for path in _below(scratch):
        there = root / path.relative_to(scratch)
        if not there.exists():
            move(path, there)
    return [*notes, "`dvc checkout` restores the results that dvc.lock records"]
