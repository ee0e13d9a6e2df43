"""Additional nodes of a cluster that work for a stage. Used by ``flows/reproducing.py``.

A helper is a process like a stage's, under a supervisor that the launcher of the cluster starts. The stage says what
it runs, in a file (``tasks/runtime/nodes.py``).
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.machine import Grant
from flows.process import Running, StageProcesses

LOOK_S = 0.5
"""How often to check whether a stage wants help."""
AGAIN_S = 10.0
"""How long to wait before a failed helper is replaced."""
END_S = 0.05
"""How often to check whether all helpers have ended."""


@contextlib.contextmanager
def helped(
    processes: StageProcesses, root: Path, stage: str, grant: Grant, env: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Start helpers for a stage of the repository ``root`` when it asks for them; they end with the block.

    Not before: they could take the last node, for which the stage itself waits. A helper that fails is reported and
    replaced.
    """
    over = threading.Event()
    helpers: list[Running] = []
    wanted = root / grant.wanted

    def help_out() -> None:
        while not over.wait(LOOK_S):
            if not wanted.exists():
                continue
            command = json.loads(wanted.read_bytes())
            with processes.beside(command, env, grant.helping) as helper:
                helpers.append(helper)
                # A helper that has to end may print a lot about it.
                status, _, tail = helper.hear(lambda line: None if over.is_set() else say(line), launched=True)
            if status and not over.is_set():
                say(f"{stage}: a helping node ended with status {status}: {(tail or ['no output'])[-1]}")
                over.wait(AGAIN_S)

    if grant.helpers:
        wanted.unlink(missing_ok=True)
    with ThreadPoolExecutor(max(1, grant.helpers)) as threads:
        helping = [threads.submit(help_out) for _ in range(grant.helpers)]
        try:
            yield
        finally:
            over.set()
            while not all(each.done() for each in helping):
                for helper in [*helpers]:  # one may just have started
                    helper.end()
                time.sleep(END_S)
            for error in filter(None, (each.exception() for each in helping)):
                say(f"{stage}: a node could not help: {error}")
            if grant.helpers:
                wanted.unlink(missing_ok=True)
