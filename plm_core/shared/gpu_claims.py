"""Claims on the GPUs that this process sees: on a machine, each GPU has one user at a time. For flow and tasks.

The flow claims GPUs for its stages; a task without a claim, such as one started by hand, claims its own. A claim is a
name in Linux's abstract socket namespace (unix(7)). The first process to bind it has it, and the kernel frees it when
the last process that inherited it has ended. Unlike a lock file, it cannot be unreadable to a second user, deleted by a
cleaner, or hidden from a service with a private ``/tmp``. Containers with separate network namespaces do not see each
other's claims: give each its own GPUs.
"""

import contextlib
import errno
import os
import pwd
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

CLAIMED = "PLM_GPUS_CLAIMED"
"""The variable that is set for processes whose GPUs are claimed for them."""

POLL_S = 0.1
"""How often a busy GPU is tried again: nothing signals that another process has freed it."""


class Claim:
    """GPUs that are taken one by one as they become free, and released together.

    Taking a GPU requires holding its turn, a second name. Turns are taken in the order of the GPUs' names, and all of
    them before the first GPU, which prevents deadlock; a claim that has every turn gets every GPU that becomes free, so
    that claims on one GPU do not starve one that waits for all.
    """

    def __init__(self, gpus: Sequence[str], wanted: int) -> None:
        self._gpus = gpus
        self._wanted = wanted
        self._turns: dict[str, socket.socket] = {}
        self._taken: dict[str, socket.socket] = {}
        self.busy = ""
        """The name that this claim is waiting for, held by another process."""

    def take(self) -> bool:
        """Take what is free now, and return whether that is enough."""
        enough = all(self._has(gpu, "turn", self._turns) for gpu in sorted(self._gpus)) and any(
            self._has(gpu, "use", self._taken) and len(self._taken) == self._wanted for gpu in self._gpus
        )
        if enough:
            _close(self._turns)
        return enough

    def wait(self, say: Callable[[str], object], pause: Callable[[float], object] = time.sleep) -> None:
        """Take enough, with a line for ``say`` when another process has them; ``pause`` waits between two tries."""
        busy = ""
        while not self.take():
            if self.busy != busy and (line := waiting_message(self.busy)):
                say(line)
            busy = self.busy
            pause(POLL_S)

    @property
    def gpus(self) -> str:
        """The GPUs taken, as in ``CUDA_VISIBLE_DEVICES``."""
        return ",".join(gpu for gpu in self._gpus if gpu in self._taken)

    @property
    def fds(self) -> tuple[int, ...]:
        """The file descriptors of the claim, which lasts as long as a process holds them open."""
        return tuple(name.fileno() for name in self._taken.values())

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._turns)
        _close(self._taken)

    def _has(self, gpu: str, kind: str, held: dict[str, socket.socket]) -> bool:
        """Whether this claim holds a name of this GPU; binds it if it is free."""
        if gpu not in held:
            name = f"plm {kind} of {gpu}"
            bound = bind(name)
            if bound is None:
                self.busy = name
                return False
            held[gpu] = bound
        return True


@contextlib.contextmanager
def claimed(wanted: int, say: Callable[[str], object]) -> Iterator[None]:
    """Claim this many of the visible GPUs for the block, or all if there are fewer; the process sees only these.

    Nothing happens if none is wanted, none is visible, or they are already claimed for this process. ``say`` is called
    with a message when it has to wait.
    """
    gpus = () if not wanted or CLAIMED in os.environ else visible_gpus()
    with Claim(gpus, min(wanted, len(gpus))) as claim:
        if gpus:
            claim.wait(say)
        before = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", CLAIMED)}
        os.environ |= {"CUDA_VISIBLE_DEVICES": claim.gpus, CLAIMED: "1"} if gpus else {}
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}


def waiting_message(busy: str) -> str:
    """A line that says who holds the GPU that is waited for; empty if it is this process itself."""
    who = holder(busy)
    return who and f"waiting for a GPU: {who} has {busy.removeprefix('plm ')}; CUDA_VISIBLE_DEVICES chooses others"


def visible_gpus() -> tuple[str, ...]:
    """The GPUs in ``CUDA_VISIBLE_DEVICES``, by UUID, because CUDA and NVML may number them differently."""
    uuids = _nvml_uuids()
    usable = tuple(filter(None, uuids))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not usable or chosen is None:
        return usable
    gpus: list[str] = []
    for token in map(str.strip, chosen.split(",")):
        # As CUDA reads it: a number, here always that of nvidia-smi, or the beginning of one UUID. NVML does not list a
        # part of a GPU (MIG) as a GPU.
        begun = [token] if token.startswith("MIG-") else [uuid for uuid in uuids if uuid.startswith(token)]
        if token.isdecimal() and int(token) < len(uuids):
            gpus.append(uuids[int(token)])
        elif token.startswith(("GPU-", "MIG-")) and len(begun) == 1:
            gpus += begun
        else:
            break  # CUDA too stops at the first invalid name, such as -1
    return tuple(filter(None, gpus))


def _nvml_uuids() -> tuple[str, ...]:
    """The UUID of each GPU that this process may use, in nvidia-smi's order; empty for one that does not respond."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    uuids: list[str] = []
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                uuids.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))))
            except pynvml.NVMLError as error:
                # NVML also counts those that a control group withholds, and CUDA does not.
                if error.value != pynvml.NVML_ERROR_NO_PERMISSION:
                    warnings.warn(f"GPU {number} is left out: {error} (see nvidia-smi)", stacklevel=3)
                    uuids.append("")
    finally:
        pynvml.nvmlShutdown()
    return tuple(uuids)


def bind(name: str) -> socket.socket | None:
    """Bind the name for as long as the returned socket is open; None while another process has it."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"\0{name}")
    except OSError as error:
        bound.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    bound.listen()  # from now on the kernel tells others who holds it
    return bound


def holder(name: str) -> str:
    """Who bound a name: the process, its user and its command; empty for this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(f"\0{name}")
            pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return "another process"
    if pid == os.getpid():
        return ""
    user = str(uid)
    command = ""
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(uid).pw_name
    with contextlib.suppress(OSError):
        command = " ".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").split())[:100]
    return f"process {pid} of {user} ({command or 'gone, but its children are still running'})"


def _close(names: dict[str, socket.socket]) -> None:
    for name in names.values():
        name.close()  # not shutdown: that would end it for processes that still hold it
    names.clear()
