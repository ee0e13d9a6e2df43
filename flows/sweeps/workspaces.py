"""The checkouts of a sweep: the files as they were when it began, and a git worktree per trial.

A worktree shares git's objects and DVC's cache with the checkout, so that what is up to date there is up to date here,
and what a trial has made can be fetched later. The result of a trial is a DVC experiment: ``dvc exp show`` lists it
with its parameters and metrics, ``dvc exp apply`` brings it into the checkout. Used by ``sweep.py`` and by ``plm gc``.
"""

import configparser
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from flows.outcome import UserError
from plm_core.shared.files import locked
from plm_core.shared.paths import JOURNALS, SWEEPS

LARGEST = 1 << 20
"""The size in bytes up to which untracked files go into the sweep's commit; larger ones are data, and linked if a stage
reads them."""
IDENTITY = {f"GIT_{who}_{what}": "plm" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
HOOKLESS = ("-c", "core.hooksPath=/dev/null")
"""The user's hooks are meant for commits and checkouts of people."""


class Workspaces:
    """The checkouts of one sweep."""

    def __init__(self, root: Path, name: str, given: Sequence[str], cache: Path) -> None:
        """``given`` are the files that stages read and no stage makes, ``cache`` is DVC's."""
        self.folder = root / SWEEPS / name
        self.commit = ""
        """The commit with the files that all trials begin with; its parent is the commit that was checked out."""
        self._root, self._name, self._given, self._cache = root, name, given, cache
        self._ref = f"refs/plm/sweeps/{name}"
        """The reference of the sweep's own commit."""

    def freeze(self) -> list[str]:
        """Commit the checkout as it is for the sweep, or return what has changed in it since that was done. Raises
        UserError: it is not a git repository, or only a part of one, or has no commit."""
        if part := self._git("rev-parse", "--show-prefix"):
            raise UserError(f"{self._root}: is the folder {part} of a git repository; expected a whole repository")
        with self._index("HEAD") as index:
            unknown = self._git("ls-files", "--others", "--exclude-standard", "-z", index=index).split("\0")
            small = [name for name in unknown if name and (self._root / name).lstat().st_size <= LARGEST]
            self._git("add", "--update", index=index)
            self._git("update-index", "--add", "-z", "--stdin", index=index, text="\0".join(small))
            now = self._git("write-tree", index=index)
        if found := self._git("for-each-ref", "--format=%(objectname)", self._ref):
            self.commit = found
            return self._git("diff", "--name-only", found, now).splitlines()
        self.commit = self._committed(now, "HEAD", f"The files of the sweep {self._name}")
        self._git("update-ref", self._ref, self.commit)
        return []

    def place(self, number: int) -> Path:
        """Where the worktree of a trial is."""
        return self.folder / f"trials/{number}"

    def name_of(self, number: int) -> str:
        """The name of a trial's experiment, in DVC and in MLflow."""
        return f"{self._name}-{number}"

    def beside(self, number: int, what: str) -> Path:
        """The path of a file of a trial that outlives its worktree."""
        return self.folder / f"trials/{number}.{what}"

    def open(self, number: int, params: Mapping[str, object]) -> Path:
        """The worktree of a trial with its parameters; an existing one is unchanged. Raises UserError: git or DVC
        fails, or a parameter is not in any section."""
        place = self.place(number)
        ready = self.beside(number, "ready")
        if not (ready.exists() and place.exists()):
            self.close(number)  # it is incomplete
            with self._worktrees():
                self._git("worktree", "add", "--quiet", "--detach", str(place), self.commit)
            (self._root / JOURNALS).mkdir(parents=True, exist_ok=True)
            # The publisher sends the runs of all trials, and outlives them.
            for name in (*self._given, JOURNALS.as_posix()):
                here = place / name
                if (self._root / name).exists() and not here.exists():
                    here.parent.mkdir(parents=True, exist_ok=True)
                    here.symlink_to(self._root / name)
            # DVC has this machine's settings there, and the checkout's cache.
            local = configparser.ConfigParser(interpolation=None)
            local.read(self._root / ".dvc/config.local", encoding="utf-8")
            local.read_dict({"cache": {"dir": str(self._cache)}})
            path = place / ".dvc/config.local"
            path.touch(mode=0o600)  # it may contain passwords
            with path.open("w", encoding="utf-8") as file:
                local.write(file)
            _run([sys.executable, "-m", "tasks.change", json.dumps(params)], place)
            ready.touch()
        return place

    def keep(self, number: int) -> None:
        """Make the result of a trial an experiment."""
        place = self.place(number)
        with self._index(self.commit) as index:
            self._git("add", "--all", index=index, folder=place)
            # Without the links of ``open``; the project's own links lead elsewhere.
            links = [name for name in self._given if (place / name).is_symlink()]
            linked = [name for name in links if (place / name).readlink() == self._root / name]
            self._git("update-index", "--force-remove", "-z", "--stdin", index=index, text="\0".join(linked))
            tree = self._git("write-tree", index=index)
        made = self._committed(tree, f"{self.commit}^", f"Trial {number} of the sweep {self._name}")
        self._git("update-ref", self._experiment(number), made)

    def close(self, number: int) -> None:
        """Remove the worktree of a trial."""
        self.beside(number, "ready").unlink(missing_ok=True)
        shutil.rmtree(self.place(number), ignore_errors=True)
        self._prune()

    def remove(self) -> None:
        """Remove the sweep: its experiments, its folder and its worktrees. Completes a removal that was killed."""
        if found := self._git("for-each-ref", "--format=%(objectname)", self._ref):
            self.commit = found
            above = self._experiment(0).removesuffix("0")
            for ref in self._git("for-each-ref", "--format=%(refname)", str(Path(above).parent)).splitlines():
                if ref.removeprefix(above).isdecimal():
                    self._git("update-ref", "-d", ref)
            self._git("update-ref", "-d", self._ref)
        shutil.rmtree(self.folder)
        self._prune()

    def _prune(self) -> None:
        """Have git forget worktrees that are gone."""
        with self._worktrees():
            self._git("worktree", "prune")

    def _worktrees(self) -> AbstractContextManager[int]:
        """Exclude other sweeps: git takes a worktree that is being added for one that is gone, and prunes it."""
        return locked(self._root / SWEEPS / ".lock")

    def difference(self, number: int) -> str:
        """What a kept trial has changed in ``params.yaml``, as a diff."""
        # Not `git diff`: a user's settings may change its output into something that `git apply` rejects.
        return self._git("diff-tree", "-p", self.commit, self._experiment(number), "--", "params.yaml") + "\n"

    def _experiment(self, number: int) -> str:
        """The reference of a trial's experiment, under the commit that it is based on, where DVC looks for it."""
        base = self._git("rev-parse", f"{self.commit}^")
        return f"refs/exps/{base[:2]}/{base[2:]}/{self.name_of(number)}"

    @contextmanager
    def _index(self, commit: str) -> Iterator[str]:
        """A temporary git index with the files of a commit."""
        with tempfile.TemporaryDirectory() as scratch:
            index = f"{scratch}/index"
            self._git("read-tree", commit, index=index)
            yield index

    def _committed(self, tree: str, parent: str, message: str) -> str:
        return self._git("commit-tree", tree, "-p", parent, "-m", message)

    def _git(self, *arguments: str, index: str | None = None, folder: Path | None = None, text: str = "") -> str:
        environment = IDENTITY | ({"GIT_INDEX_FILE": index} if index else {})
        return _run(["git", *HOOKLESS, *arguments], folder or self._root, environment, text)


@contextmanager
def only_one(folder: Path) -> Iterator[int]:
    """Hold a sweep while the block runs; yields the lock's descriptor, which trials inherit. Raises UserError: another
    process holds it."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(locked(folder / "lock", wait=False))
        except BlockingIOError:
            raise UserError(f"{folder}: this sweep is already running; wait for it, or give another --name") from None
        yield held


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, text: str = "") -> str:
    """The output of a command. Raises UserError, with the first line of its error, if it fails."""
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command, cwd=folder, env=env, input=text, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no error message"])[0]
        begun = " ".join([word for word in command if word not in HOOKLESS][:4])
        raise UserError(f"{folder}: `{begun}`: {said.removeprefix('error: ')}")
    return done.stdout.removesuffix("\n")
