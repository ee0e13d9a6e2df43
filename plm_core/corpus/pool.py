"""Work on the parts of a corpus, by as many processes as see one folder, on this machine and on others.

Used by stages that read the corpus. Files are the only truth, and no process need know of another: a job lies in the
folder as a function and its items, whoever claims an item does it, and its result is a folder that appears whole. A
stage that is run again does what is not there yet. Who claims an item keeps the claim young; an old one, or one whose
process on this machine is no more, is void. An item that is done twice gives the same bytes twice.

``python -m plm_core.corpus.pool FOLDER CORES`` is such processes, which end with the one that started them;
``FOLDER`` need not be there yet.
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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.files import atomic_file, flush_folder
from plm_core.shared.processes import started

Function = Callable[[Any, Path], object]
"""Does one item, and writes its result into the folder that it is given. A function of a module: it is sent by name."""

JOB = "job.pickle"
KEEP_S = 2.0
"""How often a process that has claimed an item says that it is still there."""
LOST_S = 30.0
"""After how long without that the claim is void."""
POLL_S = 0.05


class Pool:
    """What a stage has processes do in its folder; it does itself what they do not."""

    def __init__(self, folder: Path, cores: int, ask: Callable[[], object] = lambda: None) -> None:
        """``folder`` may hold what a run that was killed has left; ``cores`` is how many processes work here.

        ``ask`` is called when there is more to do than for these.
        """
        self.folder = folder
        self._cores = cores
        self._ask = ask
        self._others: list[subprocess.Popen[bytes]] = []

    def map(self, name: str, function: Function, items: Sequence[Any]) -> list[Path]:
        """Do every item that is not done, and return the folders of the results in the order of the items.

        Args:
            name: of the job; it has the same items whenever the stage is run.
            function: what is done. Its result depends on the item alone.
            items: what can be pickled, few bytes each besides what they have in common.

        Raises:
            UserError: ``function`` raised it for an item, here or elsewhere.
            OSError: the same, such as for a full disk.
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
                for process in self._others:
                    process.poll()  # else one that was killed would seem to be there
                time.sleep(POLL_S)
        return [job.result(number) for number in range(len(items))]

    def end(self) -> None:
        """End the processes that work here."""
        for process in self._others:
            process.terminate()  # what they have half done has no name yet
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
    """A job as one of the processes sees it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._function: Function
        self._items: Sequence[Any]
        self._function, self._items = pickle.loads((folder / JOB).read_bytes())

    def step(self) -> _Did:
        """Do one item that no other process does.

        Raises:
            UserError: an item cannot be done.
            OSError: the same.
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
        """The folder of an item's result, which is there when the item is done."""
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
            flush_folder(temporary)  # or a crash of the machine could leave a result without its bytes
            with contextlib.suppress(OSError):  # another process has done it, too
                temporary.rename(result)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _me() -> str:
    return f"{socket.gethostname()}.{os.getpid()}.{started(os.getpid())}"


@contextlib.contextmanager
def _claimed(claim: Path) -> Iterator[bool]:
    """Whether the claim is this process's for the block."""
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
    """Whether a claim is that of a process that is no more; then the claim is gone."""
    clock = claim.with_name(f".clock.{_me()}")
    try:
        host, *process = claim.read_text().rsplit(".", 2)  # of one that was made just now, nothing yet
        if host == socket.gethostname():
            pid, began = process
            void = not _lives(int(pid)) or started(int(pid)) != began
        else:  # by the clock of the folder, which need not be this machine's
            clock.touch()
            void = clock.stat().st_mtime - claim.stat().st_mtime > LOST_S
    except FileNotFoundError:
        return True
    if void:
        claim.unlink(missing_ok=True)
    return void


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "plm_core.corpus.pool", str(folder), "1", str(os.getpid())]
    return subprocess.Popen(command)


def serve(folder: Path, parent: int) -> None:
    """Do what there is to do for as long as the process ``parent`` lives."""
    jobs: dict[Path, _Job | None] = {}
    while os.getppid() == parent:
        did = _Did.NOTHING
        for file in sorted(folder.glob(f"*/{JOB}")):
            with contextlib.suppress(FileNotFoundError):  # the pool has ended, and its folder goes
                if file not in jobs:
                    jobs[file] = _Job(file.parent)
                if (job := jobs[file]) is not None and (did := job.step()) is _Did.ALL:
                    jobs[file] = None
        if did is not _Did.ONE:
            time.sleep(POLL_S)


def main() -> None:
    """Serve with as many processes as the command line says."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # else one that was killed would seem to be there
    # Who started it may be no more by now.
    parent = int(sys.argv[3]) if len(sys.argv) > 3 else os.getppid()
    folder = Path(sys.argv[1])
    for _ in range(int(sys.argv[2]) - 1):
        _start(folder)
    with contextlib.suppress(UserError, OSError):  # the stage says it
        serve(folder, parent)


if __name__ == "__main__":
    main()
