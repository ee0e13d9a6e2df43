"""What a process takes from the shell that it was started in, and what not. Called first by ``plm`` and every stage."""

import getpass
import os
import sys
from collections.abc import Iterable

from plm_core.shared.errors import UserError

ANOTHER_RUN = (
    "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_ACTIVE_MODEL_ID", "MLFLOW_REGISTRY_URI",
)  # fmt: skip
"""Variables that would send what is logged to another job's run, experiment, model or registry."""
RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
)  # fmt: skip
"""Variables of torchrun and of clusters that make a process train together with others."""
HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Variables that Git sets for a hook: git would work on that repository and index, wherever it runs."""


def prepare() -> None:
    """Ignore another job's MLflow and a hook's repository, reach this machine's servers without a proxy, escape what
    the terminal cannot show, and name a user whom the system does not. Raises UserError: it is to train with others,
    and torchrun has not started it: it would wait for them, or write nothing because it is not the first."""
    for name in HOOK:
        os.environ.pop(name, None)
    _ignore(ANOTHER_RUN, "params.yaml names the experiment and the model, MLFLOW_TRACKING_URI the server")
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if direct != "*" and "127.0.0.1" not in direct:
        os.environ |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"127.0.0.1,localhost,{direct}".rstrip(","))
    if sys.stdout and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in /etc/passwd
        os.environ |= {"USER": str(os.getuid()), "HOME": os.environ.get("HOME", "/")}
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if (rank, size) != ("0", "1") and "TORCHELASTIC_RUN_ID" not in os.environ:
        found = f"RANK: {rank}, WORLD_SIZE: {size}; torchrun has not started this process"
        raise UserError(f"{found}; expected torchrun, or `env -u RANK -u WORLD_SIZE` before the command")


def lead() -> None:
    """``prepare``, for a process that starts stages: each of them is alone, and reads and writes UTF-8."""
    _ignore(RANKS, "`plm` starts the processes of a training run itself: see PLM_RANKS and PLM_CLUSTER")
    prepare()
    # What they print is shown where this process prints.
    encoding = "utf-8" if sys.stdout and sys.stdout.encoding == "utf-8" else "ascii"
    os.environ |= {"PYTHONUTF8": "1", "PYTHONIOENCODING": f"{encoding}:backslashreplace"}


def _ignore(names: Iterable[str], instead: str) -> None:
    if found := [name for name in names if os.environ.pop(name, None) is not None]:
        print(f"warning: {', '.join(found)} of the shell ignored: {instead}", file=sys.stderr, flush=True)
