"""A fork server: a process that has already imported the libraries, and forks each stage. Used by ``process.py``.

Also a program: ``python -m flows.processes.forkserver SOCKET LIBRARY...``. It imports the libraries that stages use but
nothing from the project itself, so a fork behaves like ``python -m MODULE ARGUMENTS``: it reads the project's files
when it starts. Its parent is the same supervisor as for every stage. A fine-tuning run with next to nothing to learn
takes 5.9 s of CPU time in a new process, and 0.6 s in a forked one.
"""

import atexit
import contextlib
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

from flows.processes import supervisor

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
"""The libraries that are slow to import. None of them starts a thread, which a fork would lack, or calls CUDA's driver,
which a fork could not call again."""

READ = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
"""Set for every stage, so that the flow can read its lines as they come."""

REQUEST_BYTES = 1 << 18
DESCRIPTORS = 64
"""The largest request: the bytes of its JSON, and the descriptors that come with it."""


class ForkServer:
    """The client's side of the process that forks stages."""

    def __init__(self) -> None:
        """Start the process; it takes requests once it is ``ready``. Raises OSError."""
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ready = False
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno()), *LIBRARIES],
                env=os.environ | READ,
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    @property
    def ready(self) -> bool:
        """Whether it has imported its libraries."""
        if not self._ready:
            with contextlib.suppress(OSError):
                self._ready = bool(self._socket.recv(1, socket.MSG_DONTWAIT))
        return self._ready

    def start(self, request: Mapping[str, object], descriptors: Sequence[int]) -> bool:
        """Start a supervised ``python -m``; False if the server has died, or the request is too large.

        The request has the ``module`` with its arguments, its ``folder``, its whole ``env``, ``umask`` and ``grace_s``;
        ``descriptors`` are its stdin, stdout and stderr, and others to keep open.
        """
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End it; the stages that it has forked continue."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def serve(requests: socket.socket, libraries: Sequence[str]) -> list[str]:
    """Fork a stage for each request; returns only in a forked stage, with its module and arguments."""
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a collection would write to the memory that is shared with the stages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # each supervisor reports how its stage ended
    requests.send(b"\n")
    while True:
        try:
            message, descriptors, *_ = socket.recv_fds(requests, REQUEST_BYTES, DESCRIPTORS)
        except ConnectionError:
            message = b""  # the client was killed before it had read an answer
        if not message:
            sys.exit()
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    # From here on in the fork: it becomes the supervisor of the stage, and never returns.
    requests.close()
    request = json.loads(message)
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
    # From here on in the supervisor's own fork: the stage.
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for number in supervisor.HEARD:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    module: list[str] = request["module"]
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]  # for its children
    return module


def _leave(ended: list[int]) -> None:
    """Exit without tearing down the libraries, which would copy the memory shared with the server: 0.4 s of CPU time.

    Called last, and only if the stage has ended by itself."""
    if ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended[0] & 0xFF)


if __name__ == "__main__":
    ended: list[int] = []
    atexit.register(_leave, ended)  # registered before the libraries' handlers, so that it runs after them
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
