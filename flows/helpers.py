"""Nodes of a cluster that work on the parts of a stage besides its own. Used by ``flows/reproducing.py``.

A helper is a process like a stage's, under a supervisor behind the launcher of the cluster. It finds its work in the
stage's folder (``plm_core/corpus/pool.py``), and nothing depends on it: what it does not do the stage does.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flows.failures import CancelledError
from flows.machine import Grant
from flows.process import Running, StageProcesses

LOOK_S = 0.5
"""How often it is looked whether a stage wants help."""
END_S = 0.05
"""The same, whether all helpers have ended."""


@contextlib.contextmanager
def helped(
    processes: StageProcesses, root: Path, stage: str, grant: Grant, env: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Give a stage of the repository ``root`` its helpers when it wants them, until the block ends.

    Not before: they could have the last node, for which the stage itself waits. One that fails is said, and no more.
    """
    over = threading.Event()
    helpers: list[Running] = []

    def help_out() -> None:
        while not wanted.exists():
            if over.wait(LOOK_S):
                return
        with contextlib.suppress(CancelledError), processes.beside(grant.helper, env, grant.launcher) as helper:
            helpers.append(helper)
            status, _, tail = helper.hear(say, launched=True)
            if status and not over.is_set():
                say(f"{stage}: a node that helped has ended with status {status}: {(tail or ['no output'])[-1]}")

    wanted = root / grant.wanted
    if grant.helpers:
        wanted.unlink(missing_ok=True)
    threads = [threading.Thread(target=help_out) for _ in range(grant.helpers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        while any(thread.is_alive() for thread in threads):
            for helper in [*helpers]:  # one may just have started
                helper.end()
            time.sleep(END_S)
