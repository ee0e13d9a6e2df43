"""Where the processes of stages run: on this machine, or where a cluster puts them. Used by ``flows/reproducing.py``.

A fact of the machine, said by ``PLM_CLUSTER``, and no parameter: a result does not depend on where it was made. A
cluster is reached by a command that runs what stands behind it somewhere else and hands on its lines, as ``srun`` does.
What stands behind it is the stage under a supervisor (``flows/process.py``), which ends it when the launcher is
interrupted or its standard input closes, and says with what status it ended. So whatever holds for a process here holds
for one there. What stages read and write lies in a folder that all nodes see at the same path.
"""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event, Lock

from flows.machine import Grant, Machine, number
from flows.outcome import UserError
from flows.stages import Stage
from plm_core.shared import paths

RAY = "python -m flows.onray --cores {cores} --gpus {gpus} --name {stage} --"
"""What ``PLM_CLUSTER=ray`` stands for."""


@dataclass(frozen=True)
class Cluster:
    """Stands in for ``Machine``: the queue of the cluster decides what runs when."""

    launcher: tuple[str, ...]
    """A command with {cores}, {gpus} and {stage} in it."""
    cores: int
    """What a stage gets that wants all: those of a node."""
    gpus: int
    """The same of GPUs; 0 where nodes have none."""
    nodes: int = 1
    """On how many a stage works that can use several."""
    _turn: Lock = field(default_factory=Lock)
    """Such stages run one after the other, or each would wait for nodes that another one has."""

    @contextlib.contextmanager
    def acquire(
        self, stage: Stage, seconds: float = 0.0, path: float = 0.0, say: Callable[[str], object] = print
    ) -> Iterator[Grant]:
        """As ``Machine.acquire``, at once."""
        cores = self.cores if "all" in (stage.cores, stage.nodes) else min(int(stage.cores), self.cores)
        gpus = self.gpus if stage.gpu == "all" else min(int(stage.gpu), self.gpus)
        filled = {"cores": str(max(cores, gpus)), "gpus": str(gpus), "stage": stage.name}
        launcher = tuple(part.format_map(filled) for part in self.launcher)
        env = {"PLM_CORES": str(cores)} if stage.nodes == "all" else {}
        if stage.nodes == 1 or self.nodes == 1:
            yield Grant(env, launcher=launcher)
            return
        wanted = (paths.PARTS / f"{stage.name}.help").as_posix()
        env |= {"PLM_NODES": str(self.nodes), "PLM_HELP": wanted}
        with self._turn:
            yield Grant(env, launcher=launcher, helpers=self.nodes - 1, wanted=wanted)

    def announce(self, stage: Stage, seconds: float, path: float) -> None:
        """Nothing: the queue of the cluster keeps no places."""

    def withdraw(self, name: str) -> None:
        """Nothing."""


def detect(interrupted: Event | None = None, sharing: int = 1) -> Machine | Cluster:
    """What stages run on: the cluster that ``PLM_CLUSTER`` names, else this machine.

    There ``PLM_CORES`` and ``PLM_GPUS`` are those of a node. By default it has as many cores as this one, and no GPU.
    ``PLM_NODES`` is how many nodes a stage gets that can use several, by default one.

    Raises:
        UserError: one of them cannot be used.
    """
    given = os.environ.get("PLM_CLUSTER", "").strip()
    if not given:
        return Machine.detect(interrupted, sharing)
    template = RAY if given == "ray" else given
    try:
        parts = shlex.split(template)
        for part in parts:
            part.format_map({"cores": "1", "gpus": "1", "stage": "x"})
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(
            f"PLM_CLUSTER: {given!r}: {error!r}; expected `ray`, or a command such as"
            " `srun --cpus-per-task={cores} --gpus={gpus}`"
        ) from error
    parts[0] = sys.executable if parts[0] == "python" else parts[0]
    if not shutil.which(parts[0]):
        raise UserError(f"PLM_CLUSTER: {given!r}: no program {parts[0]!r} on the PATH")
    cores = Machine.detect().cores
    return Cluster(tuple(parts), cores, number("PLM_GPUS", "GPUs") or 0, number("PLM_NODES", "nodes") or 1)
