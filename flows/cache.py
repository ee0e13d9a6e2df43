"""DVC's cache and the outputs that ``dvc.lock`` records. Used by ``plm doctor`` and ``plm gc``.

DVC says what its own ``gc`` would keep. What is deleted of the rest is decided here, because DVC's command does not
look at ages or say how much it frees: a result of last week, to which somebody may go back, stays.
"""

import contextlib
import hashlib
import logging
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.outcome import UserError

DAY_S = 86400.0
FOLDER = ".dir"
"""The suffix of an object that lists the files of a folder."""


@dataclass(frozen=True)
class Output:
    """An output that differs from what ``dvc.lock`` records."""

    path: str
    stage: str
    state: str
    """In DVC's words: ``modified``, ``deleted`` or ``not in cache``."""
    cached: bool


def differing(root: Path) -> list[Output]:
    """The recorded outputs that are missing, changed or not in the cache. Raises UserError: DVC fails."""
    with _opened(root) as repo:
        return [
            Output(Path(out.fs_path).relative_to(repo.root_dir).as_posix(), node.addressing, state, out.use_cache)
            for node in repo.index.stages
            for out in node.outs
            if out.hash_info
            for state in out.status().values()
        ]


def empty(root: Path) -> bool:
    """Whether the cache holds nothing, as in a new clone. Raises UserError: DVC fails."""
    with _opened(root) as repo, contextlib.suppress(FileNotFoundError):
        return not any(True for _ in repo.cache.local.all())
    return True


def restore(root: Path, path: str) -> None:
    """Restore a missing output from the cache. Raises UserError: DVC fails."""
    with _opened(root) as repo:
        repo.checkout([str(root / path)])


def recorded_bytes(root: Path) -> int:
    """The sizes of all recorded outputs together. Raises UserError: DVC fails."""
    with _opened(root) as repo:
        return sum(out.meta.size or 0 for node in repo.index.stages for out in node.outs if out.hash_info)


def damaged(root: Path) -> list[Path]:
    """The objects of the cache whose bytes do not match their names; reads all of them.

    Raises:
        UserError: DVC fails.
    """
    with _opened(root) as repo:
        cache = repo.cache.local
        paths = {oid: Path(cache.oid_to_path(oid)) for oid in cache.all()}
    return sorted(path for oid, path in paths.items() if _md5(path) != oid.removesuffix(FOLDER))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@dataclass(frozen=True)
class Unused:
    """Objects of one store that nothing needs."""

    where: str
    names: list[str]
    bytes: int


def unused(root: Path, days: int, remote: bool) -> list[Unused]:
    """The objects, by store, older than ``days`` that no output recorded now or in a commit of those days needs.

    Other checkouts may share a cache outside the repository, and what they need is not known here: like DVC's remote,
    it is searched only if ``remote`` says that no other checkout uses it.

    Raises:
        UserError: DVC or Git fails.
    """
    with _opened(root) as repo:
        needed = _needed(repo, days)
        return [found for store in _stores(repo, remote) if (found := _old(store, needed, days)).names]


def delete(root: Path, days: int, remote: bool) -> None:
    """Delete what ``unused`` finds now. Raises UserError: DVC or Git fails."""
    with _opened(root) as repo:
        needed = _needed(repo, days)
        for store in _stores(repo, remote):
            # Folder lists first, as DVC does it: a list without its files would be taken for a result.
            for name in sorted(_old(store, needed, days).names, key=lambda name: not name.endswith(FOLDER)):
                store.fs.remove(store.oid_to_path(name))


def _stores(repo: Any, remote: bool) -> list[Any]:
    found = []
    if remote or Path(repo.cache.local.path).resolve().is_relative_to(repo.root_dir):
        found.append(repo.cache.local)
    if remote and repo.config["core"].get("remote"):
        found.append(repo.cloud.get_remote_odb(hash_name="md5"))
    return found


def used(repo: Any, revs: Sequence[str] = ()) -> set[str]:
    """The objects that the recorded outputs of the checkout and of these commits need.

    Also those of outputs that Git keeps, such as metrics: DVC's run cache restores no result without them.

    Raises:
        UserError: DVC cannot read one of the commits.
    """
    from dvc.exceptions import DvcException

    found: set[str] = set()
    for rev in repo.brancher(revs=list(revs)):
        try:
            for out in repo.index.outs:
                out.use_cache = bool(out.hash_info)
            # force: the files of a folder whose list is missing are useless.
            found |= {each.value for objects in repo.index.used_objs(force=True).values() for each in objects}
        except DvcException as error:
            raise UserError(f"{repo.root_dir}: DVC cannot read {rev or 'dvc.yaml'}: {error}") from error
    return found


def _needed(repo: Any, days: int) -> set[str]:
    """What the outputs of the checkout and of the commits of the last ``days`` days need.

    DVC takes a third of a second per commit, so only commits that changed a record of outputs are read, and the first
    one of those days, whose record is older.
    """
    root = Path(repo.root_dir)
    changed = _log(root, days, "%H", "--", "*dvc.lock", "*.dvc")
    parents = {commit: before for commit, *before in map(str.split, _log(root, days, "%H %P"))}
    first = {commit for commit, before in parents.items() if not before or not parents.keys() >= set(before)}
    return used(repo, sorted({*changed, *first}))


def _log(root: Path, days: int, form: str, *paths: str) -> list[str]:
    """A line per commit of the last ``days`` days, on any branch; none if there is no git repository.

    Raises:
        UserError: git fails.
    """
    command = ["git", "log", "--all", "--full-history", f"--since={days}.days", f"--format={form}", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode and any((folder / ".git").exists() for folder in (root, *root.parents)):
        said = " ".join(done.stderr.split())
        raise UserError(f"{root}: nothing is deleted from DVC's cache: `git log` cannot say what is needed: {said}")
    return done.stdout.splitlines()


def _old(store: Any, needed: set[str], days: int) -> Unused:
    """The unneeded objects that are older than ``days``; those whose age the store does not know are left out."""
    before = time.time() - days * DAY_S
    sizes: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):  # an empty remote
        for name in set(store.all()) - needed:
            path = store.oid_to_path(name)
            with contextlib.suppress(NotImplementedError):
                if store.fs.modified(path).timestamp() < before:
                    sizes[name] = store.fs.size(path)
    return Unused(store.path, sorted(sizes), sum(sizes.values()))


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[Any]:
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    logging.getLogger("dvc").setLevel(logging.CRITICAL)
    try:
        with Repo(str(root), _wait_for_lock=True) as repo, lock_repo(repo):
            yield repo
    except DvcException as error:
        raise UserError(f"{root / 'dvc.yaml'}: {error}") from error
