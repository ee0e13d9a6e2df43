"""The checkout and its machine: journals, snapshots, sweeps, compiled code, disk space."""

import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flows.flow_configs import DAY_S, Retention
from flows.maintenance.findings import Finding, Found, unneeded
from flows.maintenance.output_checks import open_repo
from flows.run.parent_run import journals as journals_of
from flows.run.parent_run import send_leftovers
from flows.sweeps import trial_checkouts
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
    """Snapshots that no training run seems to need, because a later one of the same stage has begun."""
    runs: dict[str, list[tuple[float, Path]]] = {}
    for folder in (root / paths.SNAPSHOTS).glob("*/"):
        if named := SNAPSHOTS.fullmatch(folder.name):
            written = max(path.stat().st_mtime for path in (folder, *folder.glob("step-*")))
            runs.setdefault(named["stage"], []).append((written, folder))
    # Only the newest can be resumed: its parameters, text and code are those of the last run.
    for stage, folders in sorted(runs.items()):
        for _, folder in sorted(folders)[:-1]:
            what = f"the snapshots have other parameters, text or code than the latest training run of {stage}"
            mend = "delete the folder, unless you want to go back to those"
            yield Finding(what, folder.relative_to(root).as_posix(), mend, partial(shutil.rmtree, folder))


def old_files(root: Path, rules: Retention) -> Found:
    """Snapshots of training runs, parts of corpus stages and sweeps that were never resumed; journals of interrupted
    training runs that MLflow has completely."""

    def delete_sweep(folder: Path) -> None:
        with trial_checkouts.lock_sweep(folder):
            trial_checkouts.TrialCheckouts(root, folder.name, [], Path()).remove()

    journals = list(journals_of(root))
    candidates: list[tuple[Path, int, Callable[[], object]]] = []
    # A training run that resumes reads its snapshots once, and writes the next ones much later.
    if not any(journal.living and journal.training for journal in journals):
        folders = (folder for kind in (paths.SNAPSHOTS, paths.PARTS) for folder in (root / kind).glob("*/"))
        candidates += [(folder, rules.snapshots_days, partial(shutil.rmtree, folder)) for folder in folders]
    sent = (journal.path for journal in journals if journal.sent and not journal.living)
    candidates += [(path, rules.snapshots_days, path.unlink) for path in sent]
    sweeps = (root / paths.SWEEPS).glob("*/")
    candidates += [(folder, rules.days, partial(delete_sweep, folder)) for folder in sweeps]

    # Only what nobody has written to for that many days.
    for path, days, delete in sorted(candidates, key=lambda candidate: candidate[0]):
        inside = [file.stat() for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
        if max(stat.st_mtime for stat in (path.stat(), *inside)) < time.time() - days * DAY_S:
            size = path.stat().st_size if path.is_file() else sum(stat.st_size for stat in inside)
            yield unneeded(path.relative_to(root).as_posix(), f"older than {days} days", size, delete)


def old_compiled(root: Path, rules: Retention) -> Found:
    """Compiled code that no training run has read for a long time."""
    before = time.time() - rules.days * DAY_S
    files = {path: path.stat() for path in (root / paths.COMPILED).rglob("*") if path.is_file()}
    unread = {path: stat for path, stat in files.items() if max(stat.st_atime, stat.st_mtime) < before}

    def delete() -> None:
        for path in unread:
            path.unlink()

    if unread:
        what = f"{len(unread):,} files of {paths.COMPILED.as_posix()}"
        size = sum(stat.st_size for stat in unread.values())
        yield unneeded(what, f"not read for {rules.days} days", size, delete)


def disk(root: Path, _everything: bool) -> Found:
    """Whether there is enough disk space for a run that rebuilds everything."""
    from rich.filesize import decimal as size

    free = shutil.disk_usage(root).free
    with open_repo(root) as repo:
        outs = (out for node in repo.index.stages for out in node.outs if out.hash_info)
        need = COPIES * sum(out.meta.size or 0 for out in outs)
    if free < need:
        what = f"{size(free)} is free, and a run that rebuilds everything writes {size(need)}"
        yield Finding(what, str(root), "`plm gc` deletes what nobody needs; or use a larger disk")
    else:
        yield f"disk: {size(free)} free; a run that rebuilds everything writes {size(need)}"
