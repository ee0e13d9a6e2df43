"""Files of the checkout: DVC's cache, snapshots, journals, sweeps, compiled code."""

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from flows import cache
from flows.cache import DAY_S
from flows.settings import Retention
from flows.sweeps.workspaces import Workspaces, only_one
from flows.tracking import journals as journals_of
from flows.waste.waste import Waste
from plm_core.shared import paths


def cached(root: Path, rules: Retention) -> Iterator[Waste]:
    """Objects in DVC's cache, and in its remote if the rules say so."""
    for found in cache.unused(root, rules.days, rules.remote):
        what = f"{len(found.names):,} files of {found.where}"
        why = f"older than {rules.days} days, and needed by no dvc.lock of that time"
        yield Waste(what, why, found.bytes, partial(cache.delete, root, rules.days, rules.remote))


def snapshots(root: Path, rules: Retention) -> Iterator[Waste]:
    """The snapshots of training runs, and the parts of corpus stages, that were never resumed."""
    folders = sorted(folder for kind in (paths.SNAPSHOTS, paths.PARTS) for folder in (root / kind).glob("*/"))
    for folder in folders if folders and not _trains(root) else []:
        files = _files(folder)
        if _old([folder, *files], rules.snapshots_days):
            why = f"older than {rules.snapshots_days} days"
            what = folder.relative_to(root).as_posix()
            yield Waste(what, why, _bytes(files), partial(_delete_snapshots, root, folder, rules.snapshots_days))


def _delete_snapshots(root: Path, folder: Path, days: int) -> None:
    if folder.is_dir() and not _trains(root) and _old([folder, *_files(folder)], days):
        shutil.rmtree(folder, ignore_errors=True)


def _trains(root: Path) -> bool:
    return any(journal.living and journal.training for journal in journals_of(root))


def journals(root: Path, rules: Retention) -> Iterator[Waste]:
    """The journals of interrupted training runs that MLflow has completely."""
    for path in _done_with(root, rules.snapshots_days):
        why = f"sent, and older than {rules.snapshots_days} days"
        delete = partial(_delete_journal, root, path, rules.snapshots_days)
        yield Waste(path.relative_to(root).as_posix(), why, _bytes([path]), delete)


def _done_with(root: Path, days: int) -> list[Path]:
    sent = [journal.path for journal in journals_of(root) if journal.sent and not journal.living]
    return [path for path in sent if _old([path], days)]


def _delete_journal(root: Path, path: Path, days: int) -> None:
    if path in _done_with(root, days):
        path.unlink(missing_ok=True)


def sweeps(root: Path, rules: Retention) -> Iterator[Waste]:
    """Sweeps that were never resumed, and their experiments."""
    for folder in sorted((root / paths.SWEEPS).glob("*/")):
        files = _files(folder)
        if _old([folder, *files], rules.days):
            what = f"the sweep {folder.name}, with its experiments"
            delete = partial(_delete_sweep, root, folder, rules.days)
            yield Waste(what, f"older than {rules.days} days", _bytes(files), delete)


def _delete_sweep(root: Path, folder: Path, days: int) -> None:
    if folder.is_dir() and _old([folder, *_files(folder)], days):
        with only_one(folder):
            Workspaces(root, folder.name, [], Path()).remove()


def compiled(root: Path, rules: Retention) -> Iterator[Waste]:
    """Compiled code that no training run has read for a long time."""
    if unread := [path for path in _files(root / paths.COMPILED) if _unread(path, rules.days)]:
        why = f"not read for {rules.days} days"
        what = f"{len(unread):,} files of {paths.COMPILED.as_posix()}"
        yield Waste(what, why, _bytes(unread), partial(_delete_unread, unread, rules.days))


def _unread(path: Path, days: int) -> bool:
    return _old([path], days, read=True) and _old([path], days)


def _delete_unread(files: Iterable[Path], days: int) -> None:
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            if _unread(path, days):
                path.unlink()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _old(files: Iterable[Path], days: int, read: bool = False) -> bool:
    """Whether none of the files has been written, or ``read``, for this many days."""
    about = [path.stat() for path in files]
    return max(each.st_atime if read else each.st_mtime for each in about) < time.time() - days * DAY_S


def _bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)
