"""The checkouts of a sweep: the files as they were when it began, for each trial in a repository of its own.

Such a repository borrows git's objects and DVC's cache from the checkout, so that what is up to date there is up to
date here, and what a trial has made can be fetched later. The result of a trial is a DVC experiment: ``dvc exp show``
lists it with its parameters and metrics, ``dvc exp apply`` brings it into the checkout. Used by ``sweep.py`` and by
``plm gc``.
"""

import configparser
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from plm_core.shared.errors import UserError
from plm_core.shared.files import locked
from plm_core.shared.paths import JOURNALS, SWEEPS

LARGEST = 1 << 20
"""The size in bytes up to which untracked files go into the sweep's commit; larger ones are data, and linked if a stage
reads them."""
IDENTITY = {f"GIT_{who}_{what}": "plm" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
HOOKLESS = ("-c", "core.hooksPath=/dev/null")
"""The user's hooks are meant for people's own commits and checkouts."""


class TrialCheckouts:
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
        # In an index of its own: what the user has staged stays as it is.
        with tempfile.TemporaryDirectory() as scratch:
            index = {"GIT_INDEX_FILE": f"{scratch}/index"}
            self._git("read-tree", "HEAD", env=index)
            unknown = self._git("ls-files", "--others", "--exclude-standard", "-z", env=index).split("\0")
            large = [name for name in filter(None, unknown) if (self._root / name).lstat().st_size > LARGEST]
            self._git("add", "--all", "--", ".", *(f":(exclude,literal){name}" for name in large), env=index)
            now = self._git("write-tree", env=index)
        if before := self._git("for-each-ref", "--format=%(objectname)", self._ref):
            self.commit = before
            return self._git("diff", "--name-only", before, now).splitlines()
        self.commit = self._git("commit-tree", now, "-p", "HEAD", "-m", f"The files of the sweep {self._name}")
        self._git("update-ref", self._ref, self.commit)
        return []

    def place(self, number: int, suffix: str = "") -> Path:
        """Where the checkout of a trial is, or with a suffix a file that outlives it."""
        return self.folder / f"trials/{number}{suffix}"

    def open(self, number: int, params: Mapping[str, object]) -> Path:
        """The checkout of a trial with its parameters; an existing one is unchanged. Raises UserError: git or DVC
        fails, or a parameter is not in any section."""
        place = self.place(number)
        if place.exists():
            return place
        new = self.place(number, ".new")  # so that a folder with the final name is always complete
        shutil.rmtree(new, ignore_errors=True)
        self._git("init", "--quiet", str(new))
        objects = self._git("rev-parse", "--path-format=absolute", "--git-path", "objects")
        (new / ".git/objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8")
        self._git("checkout", "--quiet", "--detach", self.commit, folder=new)
        # Git does not have the data; the journals are shared because the publisher of all trials outlives them.
        (self._root / JOURNALS).mkdir(parents=True, exist_ok=True)
        for name in (*self._given, JOURNALS.as_posix()):
            link = new / name
            if (self._root / name).exists() and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(self._root / name)
        # DVC's local settings: those of this machine, and the checkout's cache.
        local = configparser.ConfigParser(interpolation=None)
        local.read(self._root / ".dvc/config.local", encoding="utf-8")
        local.read_dict({"cache": {"dir": str(self._cache)}})
        path = new / ".dvc/config.local"
        path.touch(mode=0o600)  # it may contain passwords
        with path.open("w", encoding="utf-8") as file:
            local.write(file)
        _run([sys.executable, "-m", "tasks.commands.change", json.dumps(params)], new)
        return new.rename(place)

    def keep(self, number: int) -> None:
        """Make the result of a trial an experiment."""
        place = self.place(number)
        # Without the links that ``open`` made; the project's own links lead elsewhere.
        links = [name for name in self._given if (place / name).is_symlink()]
        linked = [name for name in links if (place / name).readlink() == self._root / name]
        # The new objects belong to the checkout: the trial's repository will be deleted.
        git = self._git("rev-parse", "--absolute-git-dir")
        there = {"GIT_DIR": git, "GIT_WORK_TREE": str(place), "GIT_INDEX_FILE": str(place / ".git/index")}
        self._git("add", "--all", env=there, folder=place)
        if linked:
            forget = ("--literal-pathspecs", "rm", "--quiet", "--cached", "--force", "--ignore-unmatch", "--")
            self._git(*forget, *linked, env=there, folder=place)
        tree = self._git("write-tree", env=there)
        what = f"Trial {number} of the sweep {self._name}"
        made = self._git("commit-tree", tree, "-p", f"{self.commit}^", "-m", what)
        self._git("update-ref", f"{self._experiments()}/{self._name}-{number}", made)

    def close(self, number: int) -> None:
        """Remove the checkout of a trial."""
        shutil.rmtree(self.place(number), ignore_errors=True)

    def remove(self) -> None:
        """Remove the sweep: its experiments and its folder. Completes a removal that was killed."""
        if commit := self._git("for-each-ref", "--format=%(objectname)", self._ref):
            self.commit = commit
            for ref in self._git("for-each-ref", "--format=%(refname)", self._experiments()).splitlines():
                if ref.rpartition(f"/{self._name}-")[2].isdecimal():  # not those of a sweep `<name>-1`
                    self._git("update-ref", "-d", ref)
            self._git("update-ref", "-d", self._ref)
        shutil.rmtree(self.folder)

    def difference(self, number: int) -> str:
        """What a kept trial has changed in ``params.yaml``, as a diff."""
        # Not `git diff`: a user's settings may change its output into something that `git apply` rejects.
        trial = f"{self._experiments()}/{self._name}-{number}"
        return self._git("diff-tree", "-p", self.commit, trial, "--", "params.yaml") + "\n"

    def _experiments(self) -> str:
        """Where DVC looks for the experiments that are based on the commit that was checked out."""
        base = self._git("rev-parse", f"{self.commit}^")
        return f"refs/exps/{base[:2]}/{base[2:]}"

    def _git(self, *arguments: str, env: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
        return _run(["git", *HOOKLESS, *arguments], folder or self._root, {**IDENTITY, **(env or {})})


@contextmanager
def lock_sweep(folder: Path) -> Iterator[int]:
    """Hold a sweep while the block runs; yields the lock's descriptor, which trials inherit. Raises UserError: another
    process holds it."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(locked(folder / "lock", wait=False))
        except BlockingIOError:
            raise UserError(f"{folder}: this sweep is already running; wait for it, or use another --name") from None
        yield held


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command. Raises UserError, with the first line of its error, if it fails."""
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no error message"])[0]
        begun = " ".join([word for word in command if word not in HOOKLESS][:4])
        raise UserError(f"{folder}: `{begun}`: {message.removeprefix('error: ')}")
    return done.stdout.removesuffix("\n")
