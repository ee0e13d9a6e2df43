"""One stage on several GPUs: torchrun's launcher, started by the stage itself. Used by pretrain.

How many processes train is the machine's business: all visible GPUs, or what ``PLM_RANKS`` says. Who started the stage
(a person, DVC, a flow) sees one process with the exit status of any stage.
"""

import ctypes
import os
import signal
import sys

from plm_core.config import UserError
from plm_core.shared.limits import SAVING_S
from plm_core.shared.statuses import BUDGET_SPENT, INTERRUPTED, USER_ERROR

PR_SET_PDEATHSIG = 1


def ranks_wanted(rows: int) -> int:
    """How many processes this one is to start for batches of so many rows; 1 to do the work itself.

    As many as there are GPUs, or ``PLM_RANKS`` of them, but a number that divides the rows.

    Raises:
        UserError: ``PLM_RANKS`` is no number of processes, or more than there are GPUs.
    """
    if "RANK" in os.environ:
        if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
            # Should the launcher, or the torchrun of this machine, be killed, nobody else would end this process.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        return 1
    import torch

    gpus = torch.cuda.device_count()
    given = os.environ.get("PLM_RANKS", str(gpus or 1))
    if not given.isdecimal() or int(given) < 1:
        raise UserError(f"PLM_RANKS: found {given!r}; expected a number of processes, 1 or more")
    if 0 < gpus < int(given):
        raise UserError(f"PLM_RANKS: {given}; this machine shows {gpus} GPUs, expected no more processes")
    most = int(given)
    wanted = next((n for n in range(most, 1, -1) if rows % n == 0), 1)
    if wanted < most:
        print(f"{wanted} of {most} processes: more do not divide a batch of {rows} rows evenly", flush=True)
    return wanted


def launch(module: str, arguments: list[str], ranks: int) -> None:
    """Run ``python -m module arguments`` as so many processes that train together, and end as they do."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(os.getpid()),
        max_restarts=0,
        shutdown_timeout=SAVING_S,
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        # The launcher's own SIGTERM, to the others once one has failed, says nothing of why.
        told = codes - {-signal.SIGTERM} or codes
        for status in (USER_ERROR, BUDGET_SPENT):
            if status in told:
                sys.exit(status)
        if (killed := min(told)) < 0:
            # As a process that trains alone and is killed: its snapshots are there, another try is worth it.
            print(f"interrupted: a process was killed by signal {-killed}", file=sys.stderr, flush=True)
            sys.exit(INTERRUPTED)
        sys.exit(INTERRUPTED if INTERRUPTED in told else 1)
    except SignalException as error:
        print(f"interrupted: {error}", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
