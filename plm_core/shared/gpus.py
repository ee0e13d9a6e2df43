"""The GPUs that this process sees, and who uses each: one at a time on the whole machine. For the flow and for tasks.

The flow claims GPUs for its stages; a task that nobody claimed any for, such as one that is started by hand, claims its
own. A claim is a name in Linux's abstract namespace of sockets (unix(7)). Whoever binds it first has it, and the kernel
frees it when the last process that inherited it has ended. There is no file that a second user could not open, that a
cleaner would delete, or that lies in another folder for a service with a ``/tmp`` of its own. Containers with networks
of their own do not see each other's claims: give each its own GPUs.
"""

import contextlib
import errno
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

CLAIMED = "PLM_GPUS_CLAIMED"
"""Is set for processes whose GPUs are claimed for them."""

POLL_S = 0.5
"""How often a busy GPU is asked for again: another process frees it without a word."""


class Claim:
    """GPUs that are taken one by one as they become free, and let go together.

    Whoever takes a GPU must hold its turn, a second name. Turns are taken in the order of the GPUs' names, and all of
    them before the first GPU, so that no two wait for each other; one that has every turn gets every GPU that becomes
    free, so that those that want one GPU do not starve one that waits for all.
    """

    def __init__(self, gpus: Sequence[str], wanted: int) -> None:
        self._gpus = gpus
        self._wanted = wanted
        self._turns: dict[str, socket.socket] = {}
        self._taken: dict[str, socket.socket] = {}
        self.busy = ""
        """The name that another has, on which this waits."""

    def take(self) -> bool:
        """Take what is free now; whether it is enough."""
        enough = all(self._has(gpu, "turn", self._turns) for gpu in sorted(self._gpus)) and any(
            self._has(gpu, "use", self._taken) and len(self._taken) == self._wanted for gpu in self._gpus
        )
        if enough:
            _close(self._turns)
        return enough

    @property
    def gpus(self) -> str:
        """What was taken, as in ``CUDA_VISIBLE_DEVICES``."""
        return ",".join(gpu for gpu in self._gpus if gpu in self._taken)

    @property
    def fds(self) -> tuple[int, ...]:
        """The claim lasts as long as a process holds these open."""
        return tuple(name.fileno() for name in self._taken.values())

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._turns)
        _close(self._taken)

    def _has(self, gpu: str, kind: str, held: dict[str, socket.socket]) -> bool:
        """Whether a name of this GPU is this claim's, now or already."""
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
    """Have this process see so many of its GPUs for the block, which nobody else uses; those that there are, if less.

    Nothing happens where none is wanted, where they are claimed for it, or where there is none.

    Args:
        wanted: How many.
        say: Is told what is waited for.
    """
    gpus = () if not wanted or CLAIMED in os.environ else visible()
    with Claim(gpus, min(wanted, len(gpus))) as claim:
        said = ""
        while gpus and not claim.take():
            if claim.busy != said:
                said = claim.busy
                say(waiting(said))
            time.sleep(POLL_S)
        before = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", CLAIMED)}
        os.environ |= {"CUDA_VISIBLE_DEVICES": claim.gpus, CLAIMED: "1"} if gpus else {}
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}


def waiting(busy: str) -> str:
    """The line that says who has what is waited for; empty where it is this process itself."""
    who = holder(busy)
    return who and f"waits for a GPU: {who} has {busy.removeprefix('plm ')}; CUDA_VISIBLE_DEVICES chooses others"


def visible() -> tuple[str, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, by UUID, because CUDA and NVML may number them differently."""
    uuids = _nvml_uuids()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not uuids or chosen is None:
        return uuids
    gpus: list[str] = []
    for token in map(str.strip, chosen.split(",")):
        # As CUDA reads it: a number, or the beginning of one UUID. A part of a GPU (MIG) is none of NVML's GPUs.
        begun = [token] if token.startswith("MIG-") else [uuid for uuid in uuids if uuid.startswith(token)]
        if token.isdecimal() and int(token) < len(uuids):
            gpus.append(uuids[int(token)])
        elif token.startswith(("GPU-", "MIG-")) and len(begun) == 1:
            gpus += begun
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


def bind(name: str) -> socket.socket | None:
    """The name, for as long as this socket is open; None while another has it."""
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
    """Who bound a name: the process, its user and its command; nothing for this process."""
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
    return f"process {pid} of {user} ({command or 'gone, but what it started goes on'})"


def _close(names: dict[str, socket.socket]) -> None:
    for name in names.values():
        name.close()  # not shutdown: that would end it for processes that still hold it
    names.clear()
