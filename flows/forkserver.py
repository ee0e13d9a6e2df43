"""Starts stages without their imports: a process that has them already forks one for each. ``flows/process.py`` asks.

A program of its own, too: ``python -m flows.forkserver SOCKET LIBRARY...``. It knows the libraries that stages import,
nothing of the project itself, so what it forks is what ``python -m MODULE ARGUMENTS`` starts: it reads the project's
files when it begins. Above it stands the same supervisor as above every stage. A fine-tuning with next to nothing to
learn takes 5.9 s of processor time in a new process, and 0.6 s in a forked one.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows import supervisor

LIBRARIES = (
    "numpy",
    "pydantic.dataclasses",
    "scipy.sparse",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sentencepiece",
    "torch",
    "torch._dynamo",
    "evaluate",
    "matplotlib.figure",
    "pynvml",
)
"""What takes long to import. None of them starts a thread that a fork would miss."""

REQUEST_BYTES = 1 << 18
DESCRIPTORS = 64
"""The largest request."""

PR_SET_NAME = 15
"""prctl(2): what top shows."""


class ForkServer:
    """The process that forks stages, as its user sees it."""

    def __init__(self) -> None:
        """Start it; it is asked once it has said that it is ready. Raises OSError."""
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ready = False
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno()), *LIBRARIES],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    @property
    def ready(self) -> bool:
        """Whether it has its imports."""
        if not self._ready:
            with contextlib.suppress(OSError):
                self._ready = bool(self._socket.recv(1, socket.MSG_DONTWAIT))
        return self._ready

    def start(
        self,
        module: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        umask: int,
        grace_s: float,
        descriptors: Sequence[int],
    ) -> bool:
        """Start a supervised ``python -m``; False when the server has died, or cannot take so much.

        Args:
            module: The module's name and the arguments.
            folder: Where it runs.
            env: Its whole environment.
            umask: Its umask.
            grace_s: How long it may take to save its state when it is interrupted.
            descriptors: Its stdin, stdout and stderr, and those that it is to keep open.
        """
        request = {"module": list(module), "folder": str(folder), "env": dict(env), "umask": umask, "grace_s": grace_s}
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End it; the stages that it has forked go on."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def serve(requests: socket.socket, libraries: Sequence[str]) -> list[str]:
    """Fork a stage for each request until there are no more; returns, in the stage, its module and arguments."""
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a collection would write to the memory that is shared with the stages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a supervisor says itself how its stage ended
    requests.send(b"\n")
    while True:
        try:
            message, descriptors, *_ = socket.recv_fds(requests, REQUEST_BYTES, DESCRIPTORS)
        except ConnectionError:
            message = b""  # who asked was killed before it had read an answer
        if not message:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            return _become(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Become the supervisor that was asked for, which ends in here, or the stage, which returns."""
    os.setsid()
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
        os.close(descriptor)
    for descriptor in descriptors[3:]:
        os.set_inheritable(descriptor, True)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    supervisor.prepare()
    parent = os.getpid()
    if stage := os.fork():
        os._exit(supervisor.supervise(stage, request["grace_s"]))
    supervisor.end_with(parent)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for number in supervisor.HEARD:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    module: list[str] = request["module"]
    ctypes.CDLL(None).prctl(PR_SET_NAME, module[0].encode(), 0, 0, 0)
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]  # whence it starts others
    return module


def _leave(ended: list[int]) -> None:
    """End a stage that has ended by itself, at the interpreter's last call: to take all libraries apart would copy the
    memory that it shares with the server, 0.4 s of processor time."""
    if ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended[0] & 0xFF)


if __name__ == "__main__":
    ended: list[int] = []
    atexit.register(_leave, ended)  # before the libraries register theirs, so that it comes after them
    name, *arguments = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    sys.argv[1:] = arguments
    sys.path[0] = str(Path.cwd())
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        ended.append(0)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            ended.append(end.code or 0)
        raise
