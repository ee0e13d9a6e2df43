"""Work on the parts of a corpus, by all processes that share one folder, on this machine and on others.

A job is a function and its items, kept in the folder. The folder of an item's result is its completion marker: it
appears when it is whole, so a stage that is run again does only what is missing. A process locks the item that it works
on, and the system frees the lock when the process or its machine ends. Nothing depends on the locks except time: an
item that is done twice gives identical bytes.

Results that are worth it are kept for the next run, under the digest of all that they depend on, so that a corpus to
which text was added is read again only where it has changed.

``python -m plm_core.corpus.part_pool FOLDER CORES`` starts processes that join the work of a folder, which need not
exist yet, and end with the process that started them.
"""

import contextlib
import errno
import fcntl
import functools
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from plm_core.config import UserError, digest
from plm_core.shared.files import atomic_file, flush_folder, sha256_path

Function = Callable[[Any, Path], object]
"""Does one item, and writes its result into the given folder. A module-level function, because it is sent by name."""

JOB, LOCKS = "job.pickle", "locks"
PATIENCE_S = 120.0
"""After this long without a new result, the stage's own process does items that are locked: their machine may have died
without the file server noticing."""
POLL_S = 0.05


class Pool:
    """Runs jobs with processes in a folder; the stage's own process takes part."""

    def __init__(
        self,
        folder: Path,
        cores: int,
        ask: Callable[[], object] = lambda: None,
        kept: Path | None = None,
        code: str = "",
    ) -> None:
        """``folder`` may contain what a killed run has left; ``cores`` is the number of processes on this machine.

        ``ask`` is called when there is more work than these can share. ``kept`` is the folder of results of earlier
        runs, which ``code``, the digest of the functions' code, must not change unnoticed.
        """
        self.folder = folder
        self._cores = cores
        self._ask = ask
        self._kept = kept
        self._code = code
        self.used = set[Path]()
        """The kept results that this run needed."""
        self._others: list[subprocess.Popen[bytes]] = []

    def map(self, name: str, function: Function, items: Sequence[Any], keep: bool = False) -> list[Path]:
        """Do every item that is not done, and return the folders of the results in the order of the items.

        Args:
            name: of the job; it must have the same items whenever the stage is run.
            function: the work. Its result depends on the item alone.
            items: picklable; each of few bytes, apart from what they share.
            keep: keep the results for later runs in which the item is the same, and so is the content of its paths. The
                work must read no other files.

        Raises:
            UserError, OSError: ``function`` raised it for an item, here or elsewhere.
        """
        job = self.folder / name
        for failed in job.glob("*.error"):
            failed.unlink()
        results = [_result(job, number) for number in range(len(items))]
        places = [self._place(function, item) for item in items] if keep else [None] * len(items)
        self.used.update(place for place in places if place)
        with atomic_file(job / JOB) as file:
            file.write_bytes(pickle.dumps((function, items, places)))
        for result, place in zip(results, places, strict=True):
            if place and place.exists():
                _link(result, place)
        if (new := sum(not result.exists() for result in results)) > self._cores:
            self._ask()
        while len(self._others) + 1 < min(self._cores, new):
            self._others.append(_start(self.folder))
        left = len(items)
        since = time.monotonic()
        while missing := sum(not result.exists() for result in results):
            done = sum(1 for _ in _work(job, function, items, places, locked=time.monotonic() - since > PATIENCE_S))
            if done or missing < left:
                left = missing
                since = time.monotonic()
            if not done:
                time.sleep(POLL_S)
        return results

    def _place(self, function: Function, item: Any) -> Path | None:
        """Where the result of an item is kept; None if it is not."""
        if self._kept is None:
            return None
        return self._kept / digest(self._code, function.__module__, function.__qualname__, _content(item))[:32]

    def end(self) -> None:
        for process in self._others:
            process.terminate()  # half-done results have no final name yet
        for process in self._others:
            process.wait()
        self._others = []


def _content(value: Any) -> Any:
    """An item as JSON can write it, with the digest of a file or folder in place of its path."""
    if isinstance(value, Path):
        return sha256_path(value)
    if is_dataclass(value):
        return [type(value).__qualname__, *(_content(getattr(value, field.name)) for field in fields(value))]
    if isinstance(value, Mapping):
        return [[_content(key), _content(content)] for key, content in value.items()]
    return list(map(_content, value)) if isinstance(value, list | tuple) else str(value)


def results_of(job: Path) -> list[Path]:
    """The folders of the results of a job that is done, in the order of its items."""
    return sorted(path for path in job.iterdir() if path.name.isdecimal())


def _result(job: Path, number: int) -> Path:
    return job / f"{number:06d}"


def _work(
    job: Path, function: Function, items: Sequence[Any], places: Sequence[Path | None], locked: bool = False
) -> Iterator[None]:
    """Do the items that are not done and that no other process has locked, or those too; yield after each.

    Raises:
        UserError, OSError: an item cannot be done, whichever process tried.
    """
    for number, (item, place) in enumerate(zip(items, places, strict=True)):
        if _result(job, number).exists():
            continue
        if failed := next(job.glob("*.error"), None):
            raise pickle.loads(failed.read_bytes())
        with (job / LOCKS).open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if not locked:
                    continue
            if not _result(job, number).exists():
                _do(_result(job, number), function, item, place)
                yield


def _do(result: Path, function: Function, item: Any, place: Path | None) -> None:
    temporary = (place or result).with_name(f".{result.name}.{secrets.token_hex(8)}")
    temporary.mkdir(parents=True)
    try:
        function(item, temporary)
    except (UserError, OSError) as error:
        with atomic_file(result.with_suffix(".error")) as file:
            file.write_bytes(pickle.dumps(error))
        raise
    else:
        flush_folder(temporary)  # otherwise a crash of the machine could leave a result without its bytes
        with contextlib.suppress(OSError):  # another process has done it too
            temporary.rename(place or result)
        if place:
            _link(result, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link(result: Path, place: Path) -> None:
    """Let a result be the one that is kept in ``place``."""
    with contextlib.suppress(FileExistsError):
        result.symlink_to(place.resolve())


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "plm_core.corpus.part_pool", str(folder), "1", str(os.getpid())])


def serve(folder: Path, parent: int) -> None:
    """Do the work of a folder as long as the process ``parent`` lives."""
    read = functools.lru_cache(maxsize=1)(lambda file, _written: pickle.loads(file.read_bytes()))
    while os.getppid() == parent:
        with contextlib.suppress(FileNotFoundError):  # the pool has ended, and its folder is being deleted
            # A pool has one job at a time.
            jobs = sorted((file.stat().st_mtime_ns, file) for file in folder.glob(f"*/{JOB}"))
            for written, file in jobs[-1:]:
                for _ in _work(file.parent, *read(file, written)):
                    if os.getppid() != parent:
                        return
        time.sleep(POLL_S)


def main() -> None:
    """Serve with the number of processes given on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The parent may have ended by now.
    parent = int(sys.argv[3]) if len(sys.argv) > 3 else os.getppid()
    folder = Path(sys.argv[1])
    for _ in range(int(sys.argv[2]) - 1):
        _start(folder)
    with contextlib.suppress(UserError, OSError):  # the stage reports it
        serve(folder, parent)


if __name__ == "__main__":
    main()
