"""Files of the checkout: DVC's cache, snapshots, journals, compiled code."""

import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from flows import cache
from flows.cache import DAY_S
from flows.settings import Retention
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
    """The snapshots of trainings that nobody has gone on with."""
    folders = sorted((root / paths.SNAPSHOTS).glob("*/"))
    for folder in folders if folders and not _trains(root) else []:
        files = [path for path in folder.rglob("*") if path.is_file()]
        if _old([folder, *files], rules.snapshots_days):
            why = f"older than {rules.snapshots_days} days"
            what = folder.relative_to(root).as_posix()
            yield Waste(what, why, _bytes(files), partial(shutil.rmtree, folder, ignore_errors=True))


def _trains(root: Path) -> bool:
    return any(journal["living"] and journal["training"] for journal in journals_of(root))


def journals(root: Path, rules: Retention) -> Iterator[Waste]:
    """The journals of interrupted trainings, which MLflow has whole."""
    for journal in journals_of(root):
        path = root / journal["path"]
        if journal["sent"] and not journal["living"] and _old([path], rules.snapshots_days):
            why = f"sent, and older than {rules.snapshots_days} days"
            yield Waste(journal["path"], why, _bytes([path]), partial(_unlink, [path, path.with_suffix(".sent")]))


def compiled(root: Path, rules: Retention) -> Iterator[Waste]:
    """Compiled code that no training has read for long."""
    files = [path for path in (root / paths.COMPILED).rglob("*") if path.is_file()]
    if unread := [path for path in files if _old([path], rules.days, read=True) and _old([path], rules.days)]:
        why = f"not read for {rules.days} days"
        what = f"{len(unread):,} files of {paths.COMPILED.as_posix()}"
        yield Waste(what, why, _bytes(unread), partial(_unlink, unread))


def _old(files: Iterable[Path], days: int, read: bool = False) -> bool:
    """Whether nobody has written, or ``read``, any of them for so many days."""
    about = [path.stat() for path in files]
    return max(each.st_atime if read else each.st_mtime for each in about) < time.time() - days * DAY_S


def _bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _unlink(files: Iterable[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)
