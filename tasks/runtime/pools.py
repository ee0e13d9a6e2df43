"""The processes that work on the parts of a corpus for a stage, and where. Used by the stages that have parts."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from plm_core.config import UserError, digest
from plm_core.corpus.pool import Pool
from plm_core.shared import paths
from tasks.runtime.nodes import ask_for_help
from tasks.runtime.stage import Stage
from tasks.settings.machine import cores


@contextlib.contextmanager
def pool(stage: Stage, *parameters: object) -> Iterator[Pool]:
    """Yield a pool for the block, which goes on where a run of the same stage was killed or had no room left.

    ``parameters`` are all on which results depend besides the stage's inputs and its code; the pool's folder is named
    by all of them. Nothing is left of it when the block ends well, or with a UserError, which does not pass by itself.
    """
    folder = paths.PARTS / stage.name / digest(*parameters, stage.inputs, stage.guard.code)[:16]
    for other in folder.parent.glob("*"):
        if other != folder:
            _discard(other)
    if folder.exists():
        print(f"{stage.name}: goes on with the parts that are done in {folder}", flush=True)
    command = [sys.executable, "-m", "plm_core.corpus.pool", str(folder), str(cores())]
    found = Pool(folder, cores(), ask=lambda: ask_for_help(command))
    keep = True
    try:
        yield found
        keep = False
    except UserError:
        keep = False
        raise
    finally:
        found.end()
        if not keep:
            _discard(folder)
            shutil.rmtree(folder.parent, ignore_errors=True)  # another node may just be leaving


def _discard(folder: Path) -> None:
    """Delete a folder; one that is half deleted has another name, or what is left would be taken for results."""
    going = folder.with_name(f".{folder.name.lstrip('.')}.going")
    shutil.rmtree(going, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(going)
    shutil.rmtree(going, ignore_errors=True)
