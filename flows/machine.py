"""What this machine can run side by side: cores shared by the stages of one flow, GPUs shared by all its
processes.

These are facts of the machine, never parameters: moving to another one must not invalidate a result.
"""

import contextlib
import fcntl
import os
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flows.graph import Stage
from flows.process import CancelledError

POLL_S = 0.5
"""How often a busy GPU is asked for again: another process frees it without a word."""


class MachineError(Exception):
    """``PLM_CORES`` is not a number of cores."""


@dataclass(frozen=True)
class Grant:
    """What a stage was given."""

    env: dict[str, str]
    """To be set for its process."""
    fds: tuple[int, ...] = ()
    """Locks that last as long as its processes hold them open."""


@dataclass
class Machine:
    """Cores and GPUs, handed out first come first served."""

    cores: int
    gpus: tuple[str, ...] = ()
    """As in ``CUDA_VISIBLE_DEVICES``."""
    locks: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """The folder of the GPUs' lock files, the same for every process of this machine."""
    interrupted: threading.Event = field(default_factory=threading.Event)
    """When set, nobody waits any more."""
    _free: int = field(init=False)
    _turns: deque[object] = field(init=False, default_factory=deque)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._free = self.cores

    @classmethod
    def detect(cls, interrupted: threading.Event | None = None) -> "Machine":
        """This machine. ``PLM_CORES`` and ``CUDA_VISIBLE_DEVICES`` narrow it; GPUs are counted without torch.

        Raises:
            MachineError: ``PLM_CORES`` is not a number, 1 or more.
        """
        return cls(_cores(), _gpus(), interrupted=interrupted or threading.Event())

    @contextlib.contextmanager
    def acquire(self, stage: Stage) -> Iterator[Grant]:
        """Wait for the stage's share of the machine and hold it for the block.

        With a GPU the work is there, so that a stage which gets one asks for one core only.

        Raises:
            CancelledError: the pipeline was cancelled while this waited.
        """
        on_gpu = stage.gpu and bool(self.gpus)
        wanted = 1 if on_gpu else self.cores if stage.cores == "all" else min(stage.cores, self.cores)
        with self._cores_taken(wanted):
            if not on_gpu:
                yield Grant({})
                return
            gpu, lock = self._wait_for_gpu()
            try:
                yield Grant({"CUDA_VISIBLE_DEVICES": gpu}, (lock,))
            finally:
                # Not LOCK_UN: that would also free it for processes that still hold the descriptor.
                os.close(lock)

    @contextlib.contextmanager
    def _cores_taken(self, wanted: int) -> Iterator[None]:
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                # Strictly in turn: otherwise small stages would starve one that waits for every core.
                while self._turns[0] is not turn or self._free < wanted:
                    self._changed.wait(POLL_S)
                    if self.interrupted.is_set():
                        raise CancelledError
                self._free -= wanted
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()

    def _wait_for_gpu(self) -> tuple[str, int]:
        while True:
            for gpu in self.gpus:
                lock = self._try_lock(gpu)
                if lock is not None:
                    return gpu, lock
            if self.interrupted.wait(POLL_S):
                raise CancelledError

    def _try_lock(self, gpu: str) -> int | None:
        path = self.locks / f"plm-gpu-{gpu.replace('/', '-')}.lock"
        # O_NOFOLLOW and no truncation: the folder is shared with other users.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock


def _cores() -> int:
    given = os.environ.get("PLM_CORES")
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise MachineError(f"PLM_CORES: {given!r}; expected a number of cores, 1 or more")
    return int(given)


def _gpus() -> tuple[str, ...]:
    """The GPUs by UUID, because CUDA and NVML may number them differently."""
    uuids = _nvml_uuids()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not uuids or visible is None:
        return uuids
    named = [token.strip() for token in visible.split(",")]
    gpus: list[str] = []
    for token in named:
        if token.isdecimal() and int(token) < len(uuids):
            gpus.append(uuids[int(token)])
        elif token.startswith(("GPU-", "MIG-")):
            gpus.append(token)
        else:
            break  # CUDA too stops at the first name that is none, such as -1
    return tuple(gpus)


def _nvml_uuids() -> tuple[str, ...]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    finally:
        pynvml.nvmlShutdown()
