"""What this machine can run side by side: cores shared by the stages of one flow, GPUs shared by all processes (they
take turns by ``plm_core/shared/gpu_claims.py``), and enough memory and disk space for each.

Cores are not claimed across flows: the kernel shares them fairly at any moment, whereas with claims a short run could
wait hours for the training run of another flow. These are facts of the machine, never parameters: moving to another
machine must not invalidate a result.
"""

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.run.graph import Stage
from plm_core.shared import environment
from plm_core.shared.environment import groups
from plm_core.shared.errors import UserError
from plm_core.shared.gpu_claims import CLAIMED, POLL_S, Claim, bind, holder, visible_gpus


class CancelledError(Exception):
    """The pipeline is being cancelled: nothing new starts."""


@dataclass(frozen=True)
class Grant:
    """What a stage was given."""

    env: dict[str, str]
    """Variables to set for its process."""
    fds: tuple[int, ...] = ()
    """Descriptors of claims, which last as long as its processes hold them open."""
    launcher: tuple[str, ...] = ()
    """The prefix of its command that runs it somewhere else."""
    helpers: int = 0
    """The number of additional nodes that can help, if the stage asks."""
    helping: tuple[str, ...] = ()
    """The launcher that starts a helper on such a node."""
    wanted: str = ""
    """The file in which the stage asks for help; its environment names it."""


@dataclass
class Machine:
    """Cores and GPUs: cores go to the stage with the longest path, GPUs to whoever is next in the queue."""

    cores: int
    gpus: tuple[str, ...] = ()
    """As in ``CUDA_VISIBLE_DEVICES``."""
    gpus_at_most: int | None = None
    """How many GPUs a stage that wants all gets; None for no limit."""
    sharing: int = 1
    """How many stages that want all cores may run side by side."""
    interrupted: threading.Event = field(default_factory=threading.Event)
    """When set, waiting ends with CancelledError."""

    def __post_init__(self) -> None:
        self._free = self.cores
        self._waiting: list[tuple[float, int]] = []
        """The paths and the cores of the stages that wait for cores, in the order in which they came."""
        self._changed = threading.Condition()

    @classmethod
    def detect(cls, interrupted: threading.Event | None = None, sharing: int = 1) -> "Machine":
        """This machine, as limited by ``PLM_CORES``, ``PLM_GPUS`` and ``CUDA_VISIBLE_DEVICES``; does not use torch.
        Raises UserError: ``PLM_CORES`` or ``PLM_GPUS`` is not a number, 1 or more."""
        most = environment.number_from_environment("PLM_GPUS", "GPUs")
        return cls(environment.processes(), visible_gpus(), most, max(1, sharing), interrupted or threading.Event())

    @contextlib.contextmanager
    def acquire(self, stage: Stage, path: float = 0.0, say: Callable[[str], object] = print) -> Iterator[Grant]:
        """Wait for the stage's share of the machine and hold it for the block; with GPUs, it gets a core for each.

        ``path`` is how long the longest chain of stages that begins with it is expected to take; the longest goes
        first. ``say`` is called with the name of the process that has the GPUs for which this waits. Raises
        CancelledError: the pipeline was cancelled while this waited.
        """
        gpus = (self.gpus_at_most or len(self.gpus)) if stage.gpu == "all" else int(stage.gpu)
        gpus = min(gpus, len(self.gpus))
        # Stages that want all cores share them, if several may run side by side.
        cores = min(gpus or (max(1, self.cores // self.sharing) if stage.cores == "all" else stage.cores), self.cores)
        with Claim(self.gpus, gpus) as claim:
            grant = Grant({})
            if gpus:  # it holds no cores while it waits for its turn, which can take hours
                claim.wait(say, self._pause)
                grant = Grant({"CUDA_VISIBLE_DEVICES": claim.gpus, CLAIMED: "1"}, claim.fds)
            with self._cores_taken(path, cores):
                yield grant

    def _pause(self, seconds: float) -> None:
        if self.interrupted.wait(seconds):
            raise CancelledError

    @contextlib.contextmanager
    def _cores_taken(self, path: float, cores: int) -> Iterator[None]:
        """Hold cores once no stage with a longer path waits for them, or when there are enough for both."""
        stage = (path, cores)
        with self._changed:
            self._waiting.append(stage)
            try:
                while True:
                    first = max(self._waiting, key=lambda waiting: waiting[0])
                    if cores <= self._free and (first is stage or first[1] <= self._free - cores):
                        break
                    self._changed.wait(POLL_S)
                    if self.interrupted.is_set():
                        raise CancelledError
                self._free -= cores
            finally:
                self._waiting = [waiting for waiting in self._waiting if waiting is not stage]
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += cores
                self._changed.notify_all()


@contextlib.contextmanager
def announce_pipeline(say: Callable[[str], object]) -> Iterator[None]:
    """Announce this pipeline to others on this machine for the block, and name those that run on the same cores."""
    for name in set(re.findall(r"@(plm run \d+)$", Path("/proc/net/unix").read_text(), re.MULTILINE)):
        if who := holder(name):
            half = max(1, len(os.sched_getaffinity(0)) // 2)
            why = f"both may take twice as long; set PLM_CORES={half} for each to divide them"
            say(f"another pipeline is running on this machine on the same cores: {who}; {why}")
    with bind(f"plm run {os.getpid()}") or contextlib.nullcontext():
        yield


RESERVE = 100 << 20
"""The bytes of disk space reserved for what is not an output of a stage: snapshots, journals, logs."""

LEAST = 1 << 20
"""The bytes that DVC needs to record that a stage has run."""

FREES = "`plm gc` frees what no stage needs any more"

VMSTAT = Path("/proc/vmstat")


class FullError(UserError):
    """There is too little disk space for any stage."""


def warn_if_scarce(root: Path, outputs: int, memory: int, say: Callable[[str], object]) -> None:
    """Warn if disk space or memory may not suffice for a stage, given the bytes of its last outputs and its last peak.
    Raises FullError: the disk is too full for any stage."""
    free = shutil.disk_usage(root).free
    disk = f"{root}: {human_size(free)} of disk space is free"
    if free < LEAST:
        raise FullError(f"{disk}, too little for any stage; {FREES}")
    if free < 2 * outputs + RESERVE:
        say(f"{disk}, but the last outputs had {human_size(outputs)}, which are kept here and in DVC's cache; {FREES}")
    if (left := available_memory()) < memory:
        say(f"{human_size(left)} of memory is free, but this stage last took {human_size(memory)}: it may be killed")


def available_memory() -> int:
    """How many bytes of memory this process and its children may still take, limited by the machine and its control
    groups, as in a container."""
    left = [psutil.virtual_memory().available]
    for group in groups():
        try:
            limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        except (OSError, ValueError):  # none, or "max"
            continue
        left.append(limit - used + _count(group / "memory.stat", "inactive_file"))
    return max(0, min(left))


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory: in this control group, or else on this machine."""
    events = [group / "memory.events" for group in groups()]
    return next((_count(path, "oom_kill") for path in events if path.exists()), _count(VMSTAT, "oom_kill"))


def human_size(size: int) -> str:
    """A size for people: ``1.2 GB``."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _count(path: Path, name: str) -> int:
    """The number after this name in a file with a name and a number per line; 0 if it is missing."""
    try:
        match = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0
