"""What this machine can run side by side: cores shared by the stages of one flow, GPUs shared by all processes.

Cores are not claimed across flows: the kernel shares them fairly at any moment, whereas with claims a short run could
wait for hours for another's training run. These are facts of the machine, never parameters: moving to another one must
not invalidate a result.
"""

import contextlib
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flows.failures import CancelledError
from flows.stages import Stage
from plm_core.shared import limits
from plm_core.shared.gpus import CLAIMED, POLL_S, Claim, bind, holder, visible, waiting

ANNOUNCED_S = 10.0
"""How long a place is reserved at most; Prefect starts a task within a second."""


@dataclass(eq=False)
class Waiting:
    """A stage that waits for cores, or holds them."""

    cores: int
    seconds: float
    """How long it is expected to take."""
    path: float
    """How long the longest chain of stages that begins with it is expected to take; the longest goes first."""
    end: float = 0.0
    """When it is expected to end, on the monotonic clock."""
    until: float = math.inf
    """Until when its place is reserved, if it was announced."""


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
    """The number of additional nodes that can help ..."""
    helping: tuple[str, ...] = ()
    """... started with this launcher ..."""
    wanted: str = ""
    """... if the stage asks for help in this file, which its environment names."""


@dataclass
class Machine:
    """Cores and GPUs: cores go to the stage with the longest path, GPUs to the stage that came first."""

    cores: int
    gpus: tuple[str, ...] = ()
    """As in ``CUDA_VISIBLE_DEVICES``."""
    gpus_at_most: int | None = None
    """How many GPUs a stage that wants all gets; None for no limit."""
    sharing: int = 1
    """How many stages that want all cores may run side by side."""
    interrupted: threading.Event = field(default_factory=threading.Event)
    """When set, waiting ends with CancelledError."""
    _free: int = field(init=False)
    _for_cores: list[Waiting] = field(init=False, default_factory=list)
    _with_cores: list[Waiting] = field(init=False, default_factory=list)
    _announced: dict[str, Waiting] = field(init=False, default_factory=dict)
    _for_gpus: deque[object] = field(init=False, default_factory=deque)
    """Who waits for GPUs, in turn."""
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._free = self.cores

    @classmethod
    def detect(cls, interrupted: threading.Event | None = None, sharing: int = 1) -> "Machine":
        """This machine, as limited by ``PLM_CORES``, ``PLM_GPUS`` and ``CUDA_VISIBLE_DEVICES``; does not use torch.

        Raises:
            UserError: ``PLM_CORES`` or ``PLM_GPUS`` is not a number, 1 or more.
        """
        most = limits.number("PLM_GPUS", "GPUs")
        return cls(
            limits.processes(),
            visible(),
            most,
            max(1, sharing),
            interrupted=interrupted or threading.Event(),
        )

    @contextlib.contextmanager
    def acquire(
        self, stage: Stage, seconds: float = 0.0, path: float = 0.0, say: Callable[[str], object] = print
    ) -> Iterator[Grant]:
        """Wait for the stage's share of the machine and hold it for the block.

        A stage with GPUs does its work there, so it gets only one core per GPU.

        Args:
            stage: Says what it wants.
            seconds: How long it is expected to take.
            path: How long the longest chain of stages that begins with it is expected to take.
            say: Is called with the name of the process that has the GPUs for which this waits.

        Raises:
            CancelledError: the pipeline was cancelled while this waited.
        """
        gpus, cores = self._wanted(stage)
        with contextlib.ExitStack() as held:
            grant = Grant({})
            if gpus:
                # While it waits for its turn, which can take hours, others have the cores.
                self.withdraw(stage.name)
                claim = held.enter_context(self._gpus_taken(gpus, say))
                grant = Grant({"CUDA_VISIBLE_DEVICES": claim.gpus, CLAIMED: "1"}, claim.fds)
            held.enter_context(self._cores_taken(Waiting(cores, seconds, path), stage.name))
            yield grant

    def announce(self, stage: Stage, seconds: float, path: float) -> None:
        """Reserve a place for a stage that is about to come, so that no shorter path takes its cores before that."""
        with self._changed:
            _, cores = self._wanted(stage)
            place = Waiting(cores, seconds, path, until=time.monotonic() + ANNOUNCED_S)
            self._announced[stage.name] = place
            self._for_cores.append(place)

    def withdraw(self, name: str) -> None:
        """Give up the place that is reserved for a stage, if any."""
        with self._changed:
            if place := self._announced.pop(name, None):
                self._for_cores.remove(place)
                self._changed.notify_all()

    def _wanted(self, stage: Stage) -> tuple[int, int]:
        """How many GPUs and cores the stage gets."""
        gpus = (self.gpus_at_most or len(self.gpus)) if stage.gpu == "all" else int(stage.gpu)
        gpus = min(gpus, len(self.gpus))
        return gpus, min(gpus or (self.share if stage.cores == "all" else stage.cores), self.cores)

    @property
    def share(self) -> int:
        """The cores of a stage that wants all, if several such stages run side by side."""
        return max(1, self.cores // self.sharing)

    @contextlib.contextmanager
    def _cores_taken(self, stage: Waiting, name: str) -> Iterator[None]:
        with self._changed:
            self._for_cores.append(stage)
            self.withdraw(name)
            try:
                while not self._is_next(stage):
                    self._changed.wait(POLL_S)
                    if self.interrupted.is_set():
                        raise CancelledError
                stage.end = time.monotonic() + stage.seconds
                self._free -= stage.cores
                self._with_cores.append(stage)
            finally:
                self._for_cores.remove(stage)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._with_cores.remove(stage)
                self._free += stage.cores
                self._changed.notify_all()

    def _is_next(self, stage: Waiting) -> bool:
        """Whether the stage begins now: its path is the longest, or it fills a gap without delaying the longest."""
        if stage.cores > self._free:
            return False
        now = time.monotonic()
        first = max((each for each in self._for_cores if now < each.until), key=lambda each: each.path)
        if stage is first or first.cores <= self._free - stage.cores:
            return True
        return now + stage.seconds <= self._begin_of(first) and stage.seconds > 0

    def _begin_of(self, stage: Waiting) -> float:
        """When there will be enough cores for the stage, as far as is known."""
        free = self._free
        for running in sorted(self._with_cores, key=lambda each: each.end):
            free += running.cores
            if free >= stage.cores:
                return running.end
        return 0.0

    @contextlib.contextmanager
    def _gpus_taken(self, wanted: int, say: Callable[[str], object]) -> Iterator[Claim]:
        try:
            with Claim(self.gpus, wanted) as claim:
                self._wait(claim, say)
                yield claim
        finally:
            with self._changed:
                self._changed.notify_all()

    def _wait(self, claim: Claim, say: Callable[[str], object]) -> None:
        """Wait, strictly in turn: otherwise stages with one GPU would starve one that waits for all."""
        turn = object()
        said = ""
        with self._changed:
            self._for_gpus.append(turn)
            try:
                while self._for_gpus[0] is not turn or not claim.take():
                    if claim.busy != said and (line := waiting(claim.busy)):
                        say(line)
                    said = claim.busy
                    self._changed.wait(POLL_S)
                    if self.interrupted.is_set():
                        raise CancelledError
            finally:
                self._for_gpus.remove(turn)
                self._changed.notify_all()


@contextlib.contextmanager
def beside_others(say: Callable[[str], object]) -> Iterator[None]:
    """Be visible to other pipelines of this machine for the block, and say which ones run on the same cores."""
    for name in set(re.findall(r"@(plm run \d+)$", Path("/proc/net/unix").read_text(), re.MULTILINE)):
        if who := holder(name):
            half = max(1, len(os.sched_getaffinity(0)) // 2)
            why = f"both may take twice as long; PLM_CORES={half} for each divides them"
            say(f"another pipeline runs on this machine and uses the same cores: {who}; {why}")
    with bind(f"plm run {os.getpid()}") or contextlib.nullcontext():
        yield
