"""DVC's cache and the outputs that ``dvc.lock`` records. Used by ``plm doctor`` and ``plm gc``.

DVC says what its own ``gc`` would keep. What is deleted of the rest is decided here, because DVC's command does not
look at ages or say how much it frees: a result of last week, to which somebody may go back, stays.
"""

import contextlib
import hashlib
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.outcome import UserError

DAY_S = 86400.0
FOLDER = ".dir"
"""The suffix of an object that lists the files of a folder."""
MD5 = re.compile(rb"\b[0-9a-f]{32}(?:\.dir)?\b")
"""The name of an object in a record of outputs, or in the list of a folder."""


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
    delete: Callable[[], object]


def unused(root: Path, days: int, remote: bool) -> Iterator[Unused]:
    """The objects, by store, older than ``days`` that no output recorded now or in a commit of those days needs.

    Other checkouts may share a cache outside the repository, and what they need is not known here: like DVC's remote,
    it is searched only if ``remote`` says that no other checkout uses it. DVC's lock is held until the next one.

    Raises:
        UserError: DVC or Git fails.
    """
    with _opened(root) as repo:
        stores = []
        if remote or Path(repo.cache.local.path).resolve().is_relative_to(repo.root_dir):
            stores.append(repo.cache.local)
        if remote and repo.config["core"].get("remote"):
            stores.append(repo.cloud.get_remote_odb(hash_name="md5"))
        needed = _needed(repo, stores, days)
        for store in stores:
            sizes = _old(store, needed, days)
            # Folder lists first, as DVC does it: a list without its files would be taken for a result.
            names = sorted(sizes, key=lambda name: not name.endswith(FOLDER))
            if names:
                yield Unused(store.path, names, sum(sizes.values()), partial(_delete, store, names))


def _delete(store: Any, names: Sequence[str]) -> None:
    for name in names:
        store.fs.remove(store.oid_to_path(name))


def used(repo: Any, commits: bytes = b"", stores: Sequence[Any] | None = None) -> set[str]:
    """The objects that the records of outputs name, those of the checkout and the given text of others'.

    Each record is read as text, and every MD5 in it counts: also of inputs, and of outputs that Git keeps, such as
    metrics, without which DVC's run cache restores no result. Lists of folders are read in the stores, by default in
    the local cache; the files of a folder whose list is missing are useless.
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


def _needed(repo: Any, stores: Sequence[Any], days: int) -> set[str]:
    """What the records of outputs in the checkout and in the commits of the last ``days`` days name.

    DVC would take a second per commit; here each record is read once.
    """
    # Those that a commit of these days made, and those that the first ones found.
    root = Path(repo.root_dir)
    log = ("log", "--all", "--full-history", f"--since={days}.days")
    changes = _git(root, *log, "-m", "--raw", "--no-abbrev", "--format=", "--", "*dvc.lock", "*.dvc").splitlines()
    blobs = {change.split()[3] for change in changes if not change.split()[4].startswith(b"D")}
    parents = {commit: before for commit, *before in map(bytes.split, _git(root, *log, "--format=%H %P").splitlines())}
    for commit in (commit for commit, before in parents.items() if not before or not parents.keys() >= set(before)):
        listed = (line.split(b"\t") for line in _git(root, "ls-tree", "-r", commit.decode()).splitlines())
        blobs |= {about.split()[2] for about, name in listed if name.strip(b'"').endswith((b"dvc.lock", b".dvc"))}
    return used(repo, _git(root, "cat-file", "--batch", given=b"\n".join(sorted(blobs))), stores)


def _git(root: Path, *arguments: str, given: bytes = b"") -> bytes:
    """What git prints; nothing if there is no git repository.

    Raises:
        UserError: git fails.
    """
    done = subprocess.run(["git", *arguments], cwd=root, input=given, capture_output=True, check=False)
    lost = done.stderr if done.returncode else b" ".join(re.findall(rb"^\w+ missing$", done.stdout, re.MULTILINE))
    if (done.returncode or lost) and any((folder / ".git").exists() for folder in (root, *root.parents)):
        said = " ".join(lost.decode(errors="replace").split())
        what = f"`git {arguments[0]}` cannot say what is needed"
        raise UserError(f"{root}: nothing is deleted from DVC's cache: {what}: {said}")
    return done.stdout


def _old(store: Any, needed: set[str], days: int) -> dict[str, int]:
    """The sizes of unneeded objects older than ``days``; those whose age the store does not know are left out."""
    before = time.time() - days * DAY_S
    sizes: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):  # an empty remote
        for name in set(store.all()) - needed:
            path = store.oid_to_path(name)
            with contextlib.suppress(NotImplementedError):
                if store.fs.modified(path).timestamp() < before:
                    sizes[name] = store.fs.size(path)
    return sizes


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
