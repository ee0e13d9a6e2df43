"""Where the processes of stages run: on this machine, or where a cluster puts them. Used by ``flows/run/reproduce.py``.

This is a fact of the machine, given by ``PLM_CLUSTER``, and not a parameter: a result does not depend on where it was
made. A cluster is reached through a launcher such as ``srun``: a command that runs the rest of its command line
somewhere else and forwards the output. That rest is the stage under a supervisor (``process.py``), which ends the stage
when the launcher is interrupted or its standard input closes, and reports the exit status. So a process on a node
behaves like a local one. What stages read and write is in a folder that all nodes see at the same path.
"""

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from uuid import uuid4

from flows.processes.process import Running, StageProcesses
from flows.processes.resources import Grant, Machine
from flows.run.graph import Stage
from plm_core.shared import environment, paths
from plm_core.shared.errors import UserError

RAY = "python -m flows.processes.ray_launcher --cores {cores} --gpus {gpus} --name {stage} --together={together} --"
"""The launcher of ``PLM_CLUSTER=ray``."""
LOOK_S = 0.5
"""How often to check whether a stage wants help."""
AGAIN_S = 10.0
"""How long to wait before a failed helper is replaced."""
END_S = 0.05
"""How often to check whether all helpers have ended."""


@dataclass(frozen=True)
class Cluster:
    """Replaces ``Machine``: the queue of the cluster decides what runs when."""

    launcher: tuple[str, ...]
    """A command that contains {cores}, {gpus} and {stage}, and for Ray {together}: see ``ray_launcher.py``."""
    cores: int
    """The cores of a node; a stage that wants all cores gets these."""
    gpus: int
    """The GPUs of a node; 0 if nodes have none."""
    nodes: int = 1
    """The number of nodes for a stage that can use several."""
    _turn: Lock = field(default_factory=Lock)
    """Held by the stage that uses several nodes; two such stages could wait for each other's nodes forever."""

    @contextlib.contextmanager
    def acquire(self, stage: Stage, path: float = 0.0, say: Callable[[str], object] = print) -> Iterator[Grant]:
        """Like ``Machine.acquire``, but without waiting."""
        several = stage.nodes != 1
        cores = self.cores if several or stage.cores == "all" else min(int(stage.cores), self.cores)
        gpus = self.gpus if stage.gpu == "all" else min(int(stage.gpu), self.gpus)
        filled = {"cores": str(max(cores, gpus)), "gpus": str(gpus), "stage": stage.name}
        env = {"PLM_CORES": str(cores)} if several else {}

        def launcher(together: str) -> tuple[str, ...]:
            return tuple(part.format_map(filled | {"together": together}) for part in self.launcher)

        if not several or self.nodes == 1:
            yield Grant(env, launcher=launcher(""))
            return
        # Nodes that work on parts join one by one; those that train together are reserved at once, under one name.
        wanted = (paths.PARTS / f"{stage.name}.help").as_posix()
        env |= {"PLM_NODES": str(self.nodes), "PLM_HELP": wanted}
        group = f":{uuid4()}" if stage.nodes == "together" else ""
        first = launcher(f"{self.nodes}{group}" if group else "")
        with self._turn:
            yield Grant(env, launcher=first, helpers=self.nodes - 1, helping=launcher(group), wanted=wanted)


def detect(interrupted: Event | None = None, sharing: int = 1) -> Machine | Cluster:
    """What stages run on: the cluster that ``PLM_CLUSTER`` names, or this machine.

    On a cluster, ``PLM_CORES`` and ``PLM_GPUS`` are those of a node, by default as many cores as here, and no GPU.
    ``PLM_NODES`` is the number of nodes for a stage that can use several, by default one. Raises UserError: one of them
    cannot be used.
    """
    given = os.environ.get("PLM_CLUSTER", "").strip()
    if not given:
        return Machine.detect(interrupted, sharing)
    template = RAY if given == "ray" else given
    try:
        parts = shlex.split(template)
        for part in parts:
            part.format_map(dict.fromkeys(("cores", "gpus", "stage", "together"), "1"))
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(
            f"PLM_CLUSTER: {given!r}: {error!r}; expected `ray`, or a command such as"
            " `srun --cpus-per-task={cores} --gpus={gpus}`"
        ) from error
    parts[0] = sys.executable if parts[0] == "python" else parts[0]
    if not shutil.which(parts[0]):
        raise UserError(f"PLM_CLUSTER: {given!r}: no program {parts[0]!r} on the PATH")
    gpus, nodes = (
        environment.number_from_environment("PLM_GPUS", "GPUs") or 0,
        environment.number_from_environment("PLM_NODES", "nodes") or 1,
    )
    return Cluster(tuple(parts), Machine.detect().cores, gpus, nodes)


@contextlib.contextmanager
def with_helpers(
    processes: StageProcesses, root: Path, stage: str, grant: Grant, env: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Start helpers for a stage of the repository ``root`` when it asks for them; they end with the block.

    They never start earlier, because they could take the last node while the stage itself still waits for one. A helper
    is a process like a stage's; the stage says in a file what it runs (``tasks/runtime/torchrun_launcher.py``). One
    that fails is reported and replaced.
    """
    over = Event()
    helpers: list[Running] = []
    wanted = root / grant.wanted

    def help_out() -> None:
        while not over.wait(LOOK_S):
            if not wanted.exists():
                continue
            command = json.loads(wanted.read_bytes())
            with processes.beside(command, env, grant.helping) as helper:
                helpers.append(helper)
                # Once the stage has ended, what helpers print while they are being stopped is noise.
                status, _, tail = helper.hear(lambda line: None if over.is_set() else say(line), launched=True)
            if status and not over.is_set():
                say(f"{stage}: a helping node ended with status {status}: {(tail or ['no output'])[-1]}")
                over.wait(AGAIN_S)

    if not grant.helpers:
        yield
        return
    wanted.unlink(missing_ok=True)
    with ThreadPoolExecutor(grant.helpers) as threads:
        helping = [threads.submit(help_out) for _ in range(grant.helpers)]
        try:
            yield
        finally:
            over.set()
            while not all(future.done() for future in helping):
                for helper in [*helpers]:  # one may just have started
                    helper.end()
                time.sleep(END_S)
            for error in filter(None, (future.exception() for future in helping)):
                say(f"{stage}: a node could not help: {error}")
            wanted.unlink(missing_ok=True)
