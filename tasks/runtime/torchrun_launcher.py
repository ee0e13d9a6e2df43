"""One stage on several GPUs or nodes: torchrun's launcher, started by the stage itself, and requests for other nodes of
a cluster, which the flow provides (``flows/processes/executor.py``).

The number of processes depends on the machine: one per visible GPU, or ``PLM_RANKS``, on as many nodes as the flow
provides. Whoever started the stage (a person, DVC, a flow) sees one process with the exit status of any stage.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_core.config import UserError
from plm_core.shared.environment import SAVING_S, end_with_parent, number_from_environment
from plm_core.shared.errors import BUDGET_SPENT, INTERRUPTED, USER_ERROR
from plm_core.shared.files import atomic_text
from tasks.runtime.stage import BudgetSpent

HELP = "PLM_HELP"
"""The variable that names the file for the request; not set if there are no other nodes."""
JOIN_S = 24 * 3600
"""How long nodes may take to join."""
RESTARTS = 3
"""How many nodes and processes may be lost before training on several nodes ends; the next run resumes it."""


def ranks_wanted(rows: int) -> int:
    """The number of processes to start for batches of this many rows; 1 to do the work in this one.

    One per GPU, or ``PLM_RANKS``, but a number that divides the rows evenly. Raises UserError: ``PLM_RANKS`` is not a
    number of processes, or is more than there are GPUs.
    """
    if "RANK" in os.environ:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            end_with_parent()  # if the launcher or this machine's torchrun is killed, nothing else ends it
        return 1
    import torch

    gpus = torch.cuda.device_count()
    most = number_from_environment("PLM_RANKS", "processes") or gpus or 1
    if 0 < gpus < most:
        raise UserError(f"PLM_RANKS: {most}; {gpus} GPUs are visible here; expected at most that many processes")
    wanted = next((n for n in range(most, 1, -1) if rows % n == 0), 1)
    if wanted < most:
        print(f"{wanted} of {most} processes: a batch of {rows} rows does not divide evenly among more", flush=True)
    return wanted


def nodes_wanted(rows: int, ranks: int) -> int:
    """The number of nodes to train on, with ``ranks`` processes each: one that divides this many rows evenly."""
    most = 1 if "RANK" in os.environ or HELP not in os.environ else int(os.environ.get("PLM_NODES", "1"))
    wanted = next(n for n in range(most, 0, -1) if rows % (n * ranks) == 0)
    if wanted < most:
        print(f"{wanted} of {most} nodes: a batch of {rows} rows does not divide evenly among more", flush=True)
    return wanted


def launch(module: str, arguments: list[str], ranks: int, nodes: int = 1) -> None:
    """Run ``python -m module arguments`` as ``ranks`` processes per node that train together, and exit as they do.

    It requests the other nodes and starts when all have joined. When one is lost, the processes wait for a replacement
    and resume from the last snapshot.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousClosedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    run_id = str(os.getpid())
    meeting = "localhost:0"
    if nodes > 1:
        with socket.socket() as probe:  # for a free port
            probe.bind(("", 0))
            meeting = f"{socket.gethostname()}:{probe.getsockname()[1]}"
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or restarted processes find the addresses of dead ones
        print(f"training on {nodes} nodes; starts when all of them have joined", flush=True)
        request_helpers(
            [
                *("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", sys.executable, "-m", "torch.distributed.run"),
                *(f"--nnodes={nodes}", f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}"),
                *("--rdzv-backend=c10d", f"--rdzv-endpoint={meeting}", f"--rdzv-id={run_id}"),
                *(f"--rdzv-conf=join_timeout={JOIN_S}", "-m", module, *arguments),
            ]
        )
    logs = tempfile.mkdtemp(prefix="torchelastic_")
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint=meeting,
        rdzv_configs={"join_timeout": JOIN_S} if nodes > 1 else {},
        run_id=run_id,
        max_restarts=RESTARTS if nodes > 1 else 0,
        shutdown_timeout=SAVING_S,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        # The launcher sends SIGTERM to the others once one has failed: that is not the cause.
        causes = codes - {-signal.SIGTERM} or codes
        for status in (USER_ERROR, BUDGET_SPENT):
            if status in causes:
                sys.exit(status)
        if (killed := min(causes)) < 0:
            # Like a single process that is killed: there are snapshots, so it is worth a retry.
            print(f"interrupted: a process was killed by signal {-killed}", file=sys.stderr, flush=True)
            sys.exit(INTERRUPTED)
        sys.exit(INTERRUPTED if INTERRUPTED in causes else 1)
    except RendezvousClosedError:
        # Another node has given up while the processes here were about to restart: both failed for the same reason.
        failures = sorted(Path(logs).rglob("failed-*"))
        code, _, reason = failures[0].read_text(encoding="utf-8").partition("\n") if failures else (INTERRUPTED, "", "")
        print(f"error: {reason}" if reason else "interrupted: another node has given up", file=sys.stderr, flush=True)
        sys.exit(int(code))
    except SignalException as error:
        print(f"interrupted: {error}", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)


def request_helpers(command: Sequence[str]) -> None:
    """Have each of the other nodes, if there are any, run a command until the stage ends."""
    if (path := os.environ.get(HELP)) is not None:
        atomic_text(Path(path), json.dumps(list(command)))


@contextlib.contextmanager
def keep_permanent_failure() -> Iterator[None]:
    """Wrap the work of one process: after a permanent failure, a restart fails at once with the same error.

    torchrun restarts all processes when one of them fails, whatever its exit status.
    """
    if not (place := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        yield
        return
    # In the agent's folder: torchrun's file is in the process's folder, inside the attempt's.
    noted = Path(place).parents[2] / f"failed-{os.environ['LOCAL_RANK']}"
    if noted.exists():
        status, _, message = noted.read_text(encoding="utf-8").partition("\n")
        raise (BudgetSpent if int(status) == BUDGET_SPENT else UserError)(message)
    try:
        yield
    except UserError as error:
        status = str(BUDGET_SPENT if isinstance(error, BudgetSpent) else USER_ERROR)
        noted.write_text(f"{status}\n{error}", encoding="utf-8")
        raise
