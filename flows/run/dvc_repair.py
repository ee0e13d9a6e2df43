"""Repairs what DVC leaves when it is killed while writing: without this, no later run of DVC would start.

Used by ``graph.py`` before it asks DVC for anything. DVC 3.67 writes three files in place: ``dvc.lock``,
``.dvc/tmp/rwlock`` and the entries of its run cache. Its cache of files is written under other names and moved, and
needs no repair.
"""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import psutil

from plm_core.shared.files import atomic_text

_ENTRY = re.compile(r"^  \S[^:\n]*:? *$", re.MULTILINE)
"""Where a stage begins in ``dvc.lock``; its name may be cut off."""

_WHOLE = re.compile(r"[0-9a-f]{64}")
"""The name of an entry of the run cache that is complete."""

SPAWNED = " --multiprocessing-fork"
"""The end of the command line of a process that multiprocessing spawned, as Prefect does for the runs of a schedule;
its ``sys.argv``, which DVC records, is that of its parent."""


def repair(repo: Any) -> list[str]:
    """Remove what is half written; return what was done, one sentence each: nothing if DVC was not killed.

    No result is lost: a stage whose record is removed is restored from DVC's run cache, or runs again.

    Args:
        repo: DVC's ``Repo``, locked.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import make_lock

    done: list[str] = []
    tmp = Path(repo.tmp_dir)
    path = tmp / "rwlock"
    hardlink = repo.config["core"].get("hardlink_lock", False)
    with make_lock(str(tmp / "rwlock.lock"), tmp_dir=str(tmp), hardlink_lock=hardlink, wait=True):
        if path.exists():
            # What dead processes hold: DVC releases it itself, unless another process has got the same id since.
            try:
                held = {"write": {}, "read": {}} | json.loads(path.read_text())
            except ValueError:
                path.unlink()
                done.append(f"{path}: half written; removed")
            else:
                kept = {
                    "write": {name: entry for name, entry in held["write"].items() if _may_hold(entry)},
                    "read": {name: [e for e in readers if _may_hold(e)] for name, readers in held["read"].items()},
                }
                if kept != held:
                    atomic_text(path, json.dumps(kept))
                    done.append(f"{path}: held by processes that are gone; released")

    # Whether the lock file is whole: a quick look, because parsing it takes half a second.
    lock = Path(repo.root_dir) / "dvc.lock"
    try:
        _ = repo.index.stages
        broken = lock.exists() and not lock.read_bytes().endswith(b"\n")
    except DvcException:
        broken = True
    if broken:
        done += _mend_lock_file(lock, tmp / "dvc.lock.broken")
        repo._reset()
    return done


def _may_hold(process: dict[str, Any]) -> bool:
    """Whether the process that this entry names is alive, and still runs the command that made the entry.

    No times are compared, because the clock may have been set since. This process holds nothing yet.
    """
    if process["pid"] == os.getpid():
        return False
    try:
        lives = " ".join(psutil.Process(process["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    if lives.endswith(SPAWNED):
        return True
    # What DVC writes is sys.argv: without Python's own arguments, and with a path for the module after -m.
    program, _, arguments = process["cmd"].partition(" ")
    path = Path(program)
    return (path.parent.name if path.stem == "__main__" else path.stem) in lives and lives.endswith(arguments)


def _mend_lock_file(path: Path, copy: Path) -> list[str]:
    """Cut off the last record of a file if it is incomplete; a file that is broken otherwise is not touched."""
    if not path.exists() or _valid(text := path.read_text(errors="replace")):
        return []
    starts = [match.start() for match in _ENTRY.finditer(text)]
    whole = text[: starts[-1]] if len(starts) > 1 else ""
    if "\n<<<<<<< " in text or (whole and not _valid(whole)):
        return []  # edited or merged by a person: DVC's own message says where
    shutil.copy(path, copy)
    if whole:
        atomic_text(path, whole)
    else:
        path.unlink()
    return [f"{path}: half written; {max(len(starts) - 1, 0)} stages are kept, DVC's run cache has the others"]


def _valid(text: str) -> bool:
    """Whether this is a complete lock file for DVC, which also trips on half a digest that is a number."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(parse_yaml(text, "dvc.lock"))
    except (YAMLFileCorruptedError, Invalid):
        return False
    return text.endswith("\n")


def repair_run_cache(repo: Any) -> list[str]:
    """Remove what is half written in DVC's run cache; returns one sentence each. Nobody else may use it meanwhile.

    DVC takes any file for an entry, and fails on an entry's folder without one.
    """
    done = []
    for entry in Path(repo.stage_cache.cache_dir).glob("*/*"):
        for leftover in entry.iterdir():
            if not _WHOLE.fullmatch(leftover.name):
                leftover.unlink()
                done.append(f"{leftover}: half written; removed")
        with contextlib.suppress(OSError):  # not empty
            entry.rmdir()
            done.append(f"{entry}: empty; removed")
    return done
