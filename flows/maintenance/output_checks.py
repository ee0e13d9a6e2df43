"""Outputs and DVC's cache: whether outputs match ``dvc.lock`` and objects their names; objects that nothing needs.

What is deleted is decided here, because DVC's own ``gc`` does not look at ages or say how much it frees: a result of
last week, which somebody may want to go back to, stays.
"""

import contextlib
import hashlib
import logging
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.flow_configs import DAY_S, Retention
from flows.maintenance.findings import Finding, Found, unneeded
from flows.run.checkout import LOCK, HeldError, lock_checkout
from flows.schedule.history import ScheduleHistory, format_time
from plm_core.shared.errors import UserError

WORDS = {"modified": "is not what dvc.lock records", "deleted": "is missing", "not in cache": "is not in DVC's cache"}
FOLDER = ".dir"
"""The suffix of an object that lists the files of a folder."""
MD5 = re.compile(rb"\b[0-9a-f]{32}(?:\.dir)?\b")
"""The name of an object in a record of outputs, or in the list of a folder."""


@contextlib.contextmanager
def open_repo(root: Path) -> Iterator[Any]:
    """DVC's ``Repo``, locked. Raises UserError: DVC fails."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    logging.getLogger("dvc").setLevel(logging.CRITICAL)
    try:
        with Repo(str(root), _wait_for_lock=True) as repo, lock_repo(repo):
            yield repo
    except DvcException as error:
        raise UserError(f"{root / 'dvc.yaml'}: {error}") from error


def cache_is_empty(root: Path) -> bool:
    """Whether the cache holds nothing, as in a new clone. Raises UserError: DVC fails."""
    with open_repo(root) as repo, contextlib.suppress(FileNotFoundError):
        return not any(True for _ in repo.cache.local.all())
    return True


def differing_outputs(root: Path) -> list[tuple[str, str, str, bool]]:
    """The recorded outputs that are missing, changed or not in the cache. Raises UserError: DVC fails.

    Returns:
        For each: its path, its stage, its state (a key of ``WORDS``), and whether it is cached.
    """
    with open_repo(root) as repo:
        return [
            (Path(out.fs_path).relative_to(repo.root_dir).as_posix(), node.addressing, state, out.use_cache)
            for node in repo.index.stages
            for out in node.outs
            if out.hash_info
            for state in out.status().values()
        ]


def outputs(root: Path, _everything: bool) -> Found:
    """Outputs that differ from what ``dvc.lock`` records; none if a pipeline starts before all have been compared.

    The checkout is not locked meanwhile: this takes minutes, and a run that is due would be skipped.
    """
    try:
        with lock_checkout(root):
            last = ScheduleHistory.read(root)
            ours = (root / LOCK).read_text()
    except HeldError as error:
        yield f"outputs: not compared with dvc.lock: {error}"
        return
    if killed := None if last.ended else last.begun:
        yield Finding(
            f"the last run, of {format_time(killed)}, was killed", "outputs", "`plm run` resolves this and the rest"
        )
    # Whoever held the checkout in the meantime has written its name into the lock.
    changed = differing_outputs(root)
    if (root / LOCK).read_text() != ours:
        yield "outputs: not compared with dvc.lock, because a run or another command has started; try again"
        return
    kept = [path for path, _, _, cached in changed if cached]
    if kept and not any((root / path).exists() for path in kept) and cache_is_empty(root):
        yield "outputs: nothing that dvc.lock records is here yet; run `dvc pull` or `plm run`"
        changed = [output for output in changed if not output[3]]

    def restore(path: str) -> None:
        with open_repo(root) as repo:
            repo.checkout([str(root / path)])

    for path, stage, state, cached in changed:
        what = f"the output {WORDS.get(state, state)}"
        if state == "deleted" and cached and not killed:  # a stage deletes its outputs before it runs
            mend = f"`dvc checkout {path}` restores it"
            yield Finding(what, path, mend, partial(restore, path))
        elif state == "modified" and cached:
            mend = f"`dvc checkout --force {path}` restores the recorded one, `plm run` rebuilds it"
            yield Finding(what, path, mend)
        else:
            yield Finding(what, path, f"`plm run` rebuilds it, in stage {stage}")


def cached(root: Path, everything: bool) -> Found:
    """With ``everything``, objects of the cache whose bytes do not match their names."""
    if not everything:
        return
    with open_repo(root) as repo:
        paths = {Path(repo.cache.local.oid_to_path(oid)): oid for oid in repo.cache.local.all()}
    for path, oid in sorted(paths.items()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if digest != oid.removesuffix(FOLDER):
            mend = "delete this file: `dvc pull` gets the object from a remote, `plm run` rebuilds it"
            yield Finding("a cached object is damaged", path.relative_to(root).as_posix(), mend)


def old_objects(root: Path, rules: Retention) -> Found:
    """The objects older than the rules' ``days`` that no output recorded now or in a commit of those days needs.

    Other checkouts may share a cache outside the repository, and what they need is not known here: like DVC's remote,
    it is searched only if the rules say that no other checkout uses it. DVC's lock is held while a finding is handled.

    Raises:
        UserError: DVC or Git fails.
    """
    with open_repo(root) as repo:
        stores = []
        if rules.remote or Path(repo.cache.local.path).resolve().is_relative_to(repo.root_dir):
            stores.append(repo.cache.local)
        if rules.remote and repo.config["core"].get("remote"):
            stores.append(repo.cloud.get_remote_odb(hash_name="md5"))
        needed = referenced_objects(repo, _committed(Path(repo.root_dir), rules.days), stores)
        before = time.time() - rules.days * DAY_S
        for store in stores:
            sizes: dict[str, int] = {}
            with contextlib.suppress(FileNotFoundError):  # an empty remote
                for name in set(store.all()) - needed:
                    path = store.oid_to_path(name)
                    with contextlib.suppress(NotImplementedError):  # a store that knows no ages
                        if store.fs.modified(path).timestamp() < before:
                            sizes[name] = store.fs.size(path)

            def delete(store: Any = store, names: Sequence[str] = tuple(sizes)) -> None:
                # Folder lists first, as DVC does it: a list without its files would be taken for a result.
                for name in sorted(names, key=lambda name: not name.endswith(FOLDER)):
                    store.fs.remove(store.oid_to_path(name))

            if sizes:
                why = f"older than {rules.days} days, and needed by no dvc.lock of that time"
                yield unneeded(f"{len(sizes):,} files of {store.path}", why, sum(sizes.values()), delete)


def referenced_objects(repo: Any, commits: bytes = b"", stores: Sequence[Any] | None = None) -> set[str]:
    """The objects named in the checkout's records of outputs, and in those of ``commits``, given as text.

    Each record is read as text, and every MD5 in it counts, including those of inputs and of outputs that Git keeps,
    such as metrics: without them, DVC's run cache restores no result. The lists of folders are read from the stores, by
    default the local cache; the files of a folder whose list is missing are useless.
    """
    paths = {Path(stage.path) for stage in repo.index.stages}
    records = [path if path.suffix == ".dvc" else path.with_name("dvc.lock") for path in paths]
    texts = [commits, *(path.read_bytes() for path in records if path.is_file())]
    needed = {name.decode() for name in MD5.findall(b"\n".join(texts))}
    for store in [repo.cache.local] if stores is None else stores:
        for path in map(store.oid_to_path, (name for name in needed.copy() if name.endswith(FOLDER))):
            with contextlib.suppress(FileNotFoundError), store.fs.open(path, "rb") as file:
                needed |= {name.decode() for name in MD5.findall(file.read())}
    return needed


def _committed(root: Path, days: int) -> bytes:
    """The records of outputs in the commits of the last ``days`` days, as text.

    DVC would take a second per commit; here each record is read once.
    """
    objects = _git(root, "rev-list", "--all", "--objects", f"--since={days}.days").splitlines()
    named = (line.partition(b" ") for line in objects)
    blobs = {digest for digest, _, name in named if name.endswith((b"dvc.lock", b".dvc"))}
    return _git(root, "cat-file", "--batch", given=b"\n".join(sorted(blobs)))


def _git(root: Path, *arguments: str, given: bytes = b"") -> bytes:
    """What git prints; nothing if there is no git repository. Raises UserError: git fails."""
    done = subprocess.run(["git", *arguments], cwd=root, input=given, capture_output=True, check=False)
    if done.returncode and any((folder / ".git").exists() for folder in (root, *root.parents)):
        message = " ".join(done.stderr.decode(errors="replace").split())
        what = f"`git {arguments[0]}` cannot say what is needed"
        raise UserError(f"{root}: nothing is deleted from DVC's cache: {what}: {message}")
    return done.stdout
