"""A process that has imported what `tasks.package` needs, which takes seconds, and forks it for each registration.

``popen`` takes the place of ``subprocess.Popen`` in ``flows/promotion.py``. Also the program of that process.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

LIBRARIES = ["mlflow.pyfunc", "pandas", "torch", "sentencepiece"]
LIBRARIES += [f"mlflow.store.{store}.sqlalchemy_store" for store in ("model_registry", "tracking")]


def start():
    """Start the process; its end of the socket is closed with the other one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        subprocess.Popen([sys.executable, __file__, str(its.fileno())], pass_fds=[its.fileno()])
    return ours


def popen(server):
    """Starts what `python -m` would, connected by pipes."""

    def forked(command, cwd, env, **_):
        (stdin, requests), (answers, stdout) = os.pipe(), os.pipe()
        message = json.dumps([command[2], str(cwd), env]).encode()
        socket.send_fds(server, [message], [stdin, stdout])
        for descriptor in (stdin, stdout):
            os.close(descriptor)
        pid, stdin, stdout = int(server.recv(20)), os.fdopen(requests, "w"), os.fdopen(answers)

        def communicate():
            stdin.close()
            stdout.read()
            stdout.close()

        return SimpleNamespace(pid=pid, stdin=stdin, stdout=stdout, communicate=communicate, wait=lambda: 1)

    return forked


def serve(requests):
    """Fork for each request until there are no more; in the fork, return its module."""
    for name in LIBRARIES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 1 << 18, 2)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            break
        requests.send(str(child).encode())
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    module, folder, env = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = folder
    return module


if __name__ == "__main__":
    runpy.run_module(serve(socket.socket(fileno=int(sys.argv[1]))), run_name="__main__", alter_sys=True)
