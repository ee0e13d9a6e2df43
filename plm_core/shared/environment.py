"""What surrounds this process: cores and control groups, the shell's variables (some for other jobs), PIDs."""

import contextlib
import ctypes
import getpass
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from plm_core.shared.errors import UserError

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""
CGROUPS = Path("/sys/fs/cgroup")
SAVING_S = 600
"""How long a stage that was asked to end may take to save its state before it is killed; the parents of the process
that ends it must wait longer."""
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
"""Variables that Git sets for a hook; with them, git works on the hook's repository and index wherever it runs."""


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies, for whatever reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def pid_scope() -> str:
    """The scope in which PIDs and the clock since boot are valid: this boot of the kernel and this PID namespace. No
    two machines share it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def process_start(pid: int) -> str:
    """When the process with this PID started, in the kernel's ticks since boot; empty if there is none."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else others[18]


def cores() -> int:
    """How many cores this process may use: those that it is bound to, or the number that its control groups allow,
    rounded up, if that is smaller, as in a container."""
    most = len(os.sched_getaffinity(0))
    for group in groups():
        with contextlib.suppress(OSError, ValueError):  # none, or "max"
            quota, period = map(int, (group / "cpu.max").read_text().split())
            most = min(most, -(-quota // period))
    return most


def processes() -> int:
    """How many processes may work here in parallel, one core each: ``PLM_CORES``, otherwise ``cores()``. Raises
    UserError: ``PLM_CORES`` is not a number, 1 or more."""
    return number_from_environment("PLM_CORES", "cores") or cores()


def groups() -> Iterator[Path]:
    """This process's control group and those above it (cgroups(7), version 2)."""
    try:
        match = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match:
        group = CGROUPS / match[1]
        yield from (path for path in (group, *group.parents) if path.is_relative_to(CGROUPS))


def number_from_environment(name: str, what: str) -> int | None:
    """A number of cores, GPUs, processes or nodes from the environment; None if the variable is not set. Raises
    UserError: it is not a whole number, 1 or more."""
    given = os.environ.get(name)
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise UserError(f"{name}: found {given!r}; expected a number of {what}, 1 or more")
    return None if given is None else int(given)


def prepare() -> None:
    """Ignore another job's MLflow and a hook's repository, reach this machine's servers without a proxy, escape what
    the terminal cannot show, and give a name to a user without one. Raises UserError: the variables say that it trains
    with others, but torchrun did not start it. It would wait for them, or write nothing because it is not the first."""
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
        problem = f"RANK: {rank}, WORLD_SIZE: {size}; torchrun has not started this process"
        raise UserError(f"{problem}; expected torchrun, or `env -u RANK -u WORLD_SIZE` before the command")


def lead() -> None:
    """``prepare`` for a process that starts stages, which belong to no other group of processes and use UTF-8."""
    _ignore(RANKS, "`plm` starts the processes of a training run itself: see PLM_RANKS and PLM_CLUSTER")
    prepare()
    # What they print is shown where this process prints.
    encoding = "utf-8" if sys.stdout and sys.stdout.encoding == "utf-8" else "ascii"
    os.environ |= {"PYTHONUTF8": "1", "PYTHONIOENCODING": f"{encoding}:backslashreplace"}


def _ignore(names: Iterable[str], instead: str) -> None:
    if ignored := [name for name in names if os.environ.pop(name, None) is not None]:
        print(f"warning: ignoring {', '.join(ignored)} from the shell: {instead}", file=sys.stderr, flush=True)
