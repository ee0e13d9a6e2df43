"""Work on the parts of a corpus, by all processes that share one folder, on this machine and on others.

Used by stages that read the corpus. All state is in files, and processes need not know of each other: a job is a
function and its items in the folder; the process that claims an item does it, and its result is a folder that appears
atomically. A stage that is run again only does what is missing. A process refreshes its claim; a claim that is old, or
whose process on this machine has ended, is void. An item that is done twice gives identical bytes.

``python -m plm_core.corpus.pool FOLDER CORES`` starts such processes, which end with the one that started them;
``FOLDER`` need not exist yet.
"""

import contextlib
import enum
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.files import atomic_file, flush_folder
from plm_core.shared.processes import started

Function = Callable[[Any, Path], object]
"""Does one item, and writes its result into the given folder. A module-level function, because it is sent by name."""

JOB = "job.pickle"
KEEP_S = 2.0
"""How often a process refreshes its claim."""
LOST_S = 30.0
"""How long after the last refresh a claim is void."""
POLL_S = 0.05


class Pool:
    """Runs jobs with processes in a folder; the stage's own process works along."""

    def __init__(self, folder: Path, cores: int, ask: Callable[[], object] = lambda: None) -> None:
        """``folder`` may contain what a killed run has left; ``cores`` is the number of processes on this machine.

        ``ask`` is called when there is more work than for these.
        """
        self.folder = folder
        self._cores = cores
        self._ask = ask
        self._others: list[subprocess.Popen[bytes]] = []

    def map(self, name: str, function: Function, items: Sequence[Any]) -> list[Path]:
        """Do every item that is not done, and return the folders of the results in the order of the items.

        Args:
            name: of the job; it must have the same items whenever the stage is run.
            function: the work. Its result depends on the item alone.
            items: picklable, of few bytes each apart from what they share.

        Raises:
            UserError: ``function`` raised it for an item, here or elsewhere.
            OSError: likewise, for example because the disk is full.
        """
        folder = self.folder / name
        for failed in folder.glob("*.error"):
            failed.unlink()
        with atomic_file(folder / JOB) as file:
            file.write_bytes(pickle.dumps((function, items)))
        if len(items) > self._cores:
            self._ask()
        job = _Job(folder)
        while len(self._others) + 1 < min(self._cores, len(items)):
            self._others.append(_start(self.folder))
        while (did := job.step()) is not _Did.ALL:
            if did is _Did.NOTHING:
                time.sleep(POLL_S)
        return [job.result(number) for number in range(len(items))]

    def end(self) -> None:
        """End the processes that work here."""
        for process in self._others:
            process.terminate()  # half-done results have no final name yet
        for process in self._others:
            process.wait()
        self._others = []


def results_of(job: Path) -> list[Path]:
    """The folders of the results of a job that is done, in the order of its items."""
    return sorted(path for path in job.iterdir() if path.name.isdecimal())


class _Did(enum.Enum):
    ONE = enum.auto()
    NOTHING = enum.auto()
    """Others have claimed what is left."""
    ALL = enum.auto()
    """Nothing is left."""


class _Job:
    """A job as seen by one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._function: Function
        self._items: Sequence[Any]
        self._function, self._items = pickle.loads((folder / JOB).read_bytes())

    def step(self) -> _Did:
        """Do one item that no other process is doing.

        Raises:
            UserError: an item cannot be done.
            OSError: likewise.
        """
        names = set(os.listdir(self._folder))  # noqa: PTH208 names alone
        if failed := next((name for name in names if name.endswith(".error")), None):
            raise pickle.loads((self._folder / failed).read_bytes())
        left = [number for number in range(len(self._items)) if self.result(number).name not in names]
        for number in left:
            claim = self.result(number).with_suffix(".claim")
            if claim.name in names and not _is_void(claim):
                continue
            with _claimed(claim) as mine:
                if mine and not self.result(number).exists():
                    self._do(number)
                    return _Did.ONE
        return _Did.NOTHING if left else _Did.ALL

    def result(self, number: int) -> Path:
        """The folder of an item's result, which exists when the item is done."""
        return self._folder / f"{number:06d}"

    def _do(self, number: int) -> None:
        result = self.result(number)
        temporary = result.with_name(f".{result.name}.{secrets.token_hex(8)}")
        temporary.mkdir()
        try:
            self._function(self._items[number], temporary)
        except (UserError, OSError) as error:
            with atomic_file(result.with_suffix(".error")) as file:
                file.write_bytes(pickle.dumps(error))
            raise
        else:
            flush_folder(temporary)  # otherwise a crash of the machine could leave a result without its bytes
            with contextlib.suppress(OSError):  # another process has done it too
                temporary.rename(result)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _me() -> str:
    return f"{socket.gethostname()}.{os.getpid()}.{started(os.getpid())}"


@contextlib.contextmanager
def _claimed(claim: Path) -> Iterator[bool]:
    """Yield whether this process has the claim, for the duration of the block."""
    try:
        with claim.open("x") as file:
            file.write(_me())
    except FileExistsError:
        yield False
        return
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(claim, ended))
    keeper.start()
    try:
        yield True
    finally:
        ended.set()
        keeper.join()
        claim.unlink(missing_ok=True)


def _keep(claim: Path, ended: threading.Event) -> None:
    while not ended.wait(KEEP_S):
        with contextlib.suppress(OSError):
            os.utime(claim)


def _is_void(claim: Path) -> bool:
    """Whether the process of a claim has ended; if so, the claim is removed."""
    try:
        host, *process = claim.read_text().rsplit(".", 2)  # a claim that was just made is still empty
        if host == socket.gethostname():
            pid, began = process
            void = started(int(pid)) != began
        else:  # by the folder's clock, which may differ from this machine's
            with tempfile.TemporaryFile(dir=claim.parent) as now:
                void = os.fstat(now.fileno()).st_mtime - claim.stat().st_mtime > LOST_S
    except FileNotFoundError:
        return True
    if void:
        claim.unlink(missing_ok=True)
    return void


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "plm_core.corpus.pool", str(folder), "1", str(os.getpid())]
    return subprocess.Popen(command)


def serve(folder: Path, parent: int) -> None:
    """Do the work of a folder as long as the process ``parent`` lives."""
    jobs: dict[Path, _Job | None] = {}
    while os.getppid() == parent:
        did = _Did.NOTHING
        for file in sorted(folder.glob(f"*/{JOB}")):
            with contextlib.suppress(FileNotFoundError):  # the pool has ended, and its folder is being deleted
                if file not in jobs:
                    jobs[file] = _Job(file.parent)
                if (job := jobs[file]) is not None and (did := job.step()) is _Did.ALL:
                    jobs[file] = None
        if did is not _Did.ONE:
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
