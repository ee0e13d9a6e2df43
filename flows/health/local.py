"""The checkout and its machine: journals, snapshots, sweeps, compiled code, locks, disk space."""

import re
import shutil
import time
from functools import partial
from pathlib import Path

import psutil

from flows.checkout import LOCK, HeldError, only_one
from flows.health.finding import Finding, Found, Note, waste
from flows.health.outputs import opened
from flows.settings import DAY_S, Retention
from flows.sweeps import workspaces
from flows.tracking import journals as journals_of
from flows.tracking import send_leftovers
from plm_core.shared import paths

SNAPSHOTS = re.compile(r"(?P<stage>.+)-[0-9a-f]{16}")
"""The folder of a training run's snapshots: its stage, and a digest of all that the result depends on."""
COPIES = 2
"""A run that rebuilds everything keeps each output in the checkout and in DVC's cache."""


def journals(root: Path, _everything: bool) -> Found:
    """Journals that MLflow has not received, and damaged ones."""
    for journal in journals_of(root):
        where = journal.path.relative_to(root).as_posix()
        if journal.damaged:
            lines = ", ".join(map(str, journal.damaged))
            mend = "restore the file from a backup, if there is one; the next `plm run` sends the other lines"
            yield Finding(f"lines cannot be read: {lines}", where, mend)
        if not journal.living and not journal.sent and journal.sender != "":
            because = f": {journal.sender}" if journal.sender else ""
            mend = "the next `plm run` sends it, once MLflow answers"
            what = f"MLflow does not have all of the run {journal.name or journal.path.stem}{because}"
            # Sending deletes a journal, and with it the lines that somebody may still be able to read.
            yield Finding(what, where, mend, None if journal.damaged else partial(send_leftovers, root))


def snapshots(root: Path, _everything: bool) -> Found:
    """Snapshots that no training run seems to need: a later one of the same stage has begun or ended."""
    newest: dict[str, float] = {}
    found = []
    for folder in sorted((root / paths.SNAPSHOTS).glob("*/")):
        named = SNAPSHOTS.fullmatch(folder.name)
        stage = named["stage"] if named else ""
        written = max((path.stat().st_mtime for path in (folder, *folder.glob("step-*"))), default=0.0)
        newest[stage] = max(newest.get(stage, 0.0), written)
        found.append((stage, written, folder))
    for stage, written, folder in found:
        where = folder.relative_to(root).as_posix()
        metrics = root / paths.METRICS / f"{stage}.json"
        if not stage:
            mend = "delete the folder, unless you want to go back to those"
            yield Finding("no training run has a folder of this name", where, mend)
        elif written < newest[stage]:
            what = f"the snapshots have other parameters, text or code than the latest training run of {stage}"
            mend = "delete the folder, unless you want to go back to those"
            yield Finding(what, where, mend, partial(shutil.rmtree, folder))
        elif metrics.is_file() and written < metrics.stat().st_mtime:
            # Git may have written the metrics: `git checkout` restores those that an interrupted run removed.
            what = f"the metrics of {stage} are newer than the snapshots: a later training run may have ended"
            yield Finding(what, where, "delete the folder if one has; `plm gc` does so once the snapshots are old")


def old_snapshots(root: Path, rules: Retention) -> Found:
    """The snapshots of training runs, and the parts of corpus stages, that were never resumed."""
    if any(journal.living and journal.training for journal in journals_of(root)):
        return
    for folder in sorted(folder for kind in (paths.SNAPSHOTS, paths.PARTS) for folder in (root / kind).glob("*/")):
        if (size := _untouched(folder, rules.snapshots_days)) is not None:
            why = f"older than {rules.snapshots_days} days"
            yield waste(folder.relative_to(root).as_posix(), why, size, partial(shutil.rmtree, folder))


def old_journals(root: Path, rules: Retention) -> Found:
    """The journals of interrupted training runs that MLflow has completely."""
    for path in [journal.path for journal in journals_of(root) if journal.sent and not journal.living]:
        if (size := _untouched(path, rules.snapshots_days)) is not None:
            why = f"sent, and older than {rules.snapshots_days} days"
            yield waste(path.relative_to(root).as_posix(), why, size, path.unlink)


def old_sweeps(root: Path, rules: Retention) -> Found:
    """Sweeps that were never resumed, and their experiments."""

    def delete(folder: Path) -> None:
        with workspaces.only_one(folder):
            workspaces.Workspaces(root, folder.name, [], Path()).remove()

    for folder in sorted((root / paths.SWEEPS).glob("*/")):
        if (size := _untouched(folder, rules.days)) is not None:
            what = f"the sweep {folder.name}, with its experiments"
            yield waste(what, f"older than {rules.days} days", size, partial(delete, folder))


def old_compiled(root: Path, rules: Retention) -> Found:
    """Compiled code that no training run has read for a long time."""
    before = time.time() - rules.days * DAY_S
    files = {path: path.stat() for path in (root / paths.COMPILED).rglob("*") if path.is_file()}
    unread = {path: each for path, each in files.items() if max(each.st_atime, each.st_mtime) < before}

    def delete() -> None:
        for path in unread:
            path.unlink()

    if unread:
        what = f"{len(unread):,} files of {paths.COMPILED.as_posix()}"
        size = sum(each.st_size for each in unread.values())
        yield waste(what, f"not read for {rules.days} days", size, delete)


def _untouched(path: Path, days: int) -> int | None:
    """The bytes of a file or folder in which nothing was written for this many days; None of another one."""
    files = [each.stat() for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    if max(each.st_mtime for each in (path.stat(), *files)) >= time.time() - days * DAY_S:
        return None
    return path.stat().st_size if path.is_file() else sum(each.st_size for each in files)


def locks(root: Path, _everything: bool) -> Found:
    """A checkout that is held by stages of a dead pipeline."""
    path = root / LOCK
    pid = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not pid.isdecimal() or psutil.pid_exists(int(pid)):
        return
    try:
        with only_one(root):
            return
    except HeldError:
        what = f"the pipeline (process {pid}) has died, and processes that it left behind hold the checkout"
        yield Finding(what, LOCK, f"`fuser -v {root}` lists all processes there, your shell too; end those of tasks")


def disk(root: Path, _everything: bool) -> Found:
    """Whether there is enough disk space for a run that rebuilds everything."""
    from rich.filesize import decimal as size

    free = shutil.disk_usage(root).free
    with opened(root) as repo:
        outs = (out for node in repo.index.stages for out in node.outs if out.hash_info)
        need = COPIES * sum(out.meta.size or 0 for out in outs)
    if free < need:
        what = f"{size(free)} are free, and a run that rebuilds everything writes {size(need)}"
        yield Finding(what, str(root), "`plm gc` deletes what nobody needs; or use a larger disk")
    else:
        yield Note(f"disk: {size(free)} free; a run that rebuilds everything writes {size(need)}")
