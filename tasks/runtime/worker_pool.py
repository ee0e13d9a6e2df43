"""The processes that work on the parts of a corpus for a stage. Used by the stages that have parts."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from plm_core.config import UserError, digest
from plm_core.corpus.part_pool import Pool
from plm_core.shared import environment, paths
from tasks.runtime.stage import Stage
from tasks.runtime.torchrun_launcher import request_helpers


@contextlib.contextmanager
def pool(stage: Stage, *parameters: object) -> Iterator[Pool]:
    """Yield a pool for the block, which resumes where a run of the same stage was killed or ran out of disk space.

    ``parameters`` are what results depend on, besides the stage's inputs and code; the pool's folder is named after all
    of them. It is deleted when the block succeeds, or fails with a UserError, which a retry would not fix. Of the
    results that the pool keeps for the next run, those that this one did not need are deleted when it succeeds.
    """
    folder = paths.PARTS / stage.name / digest(*parameters, stage.inputs, stage.guard.code)[:16]
    kept = folder.with_name("kept")
    for other in folder.parent.glob("*"):
        if other not in (folder, kept):
            _discard(other)
    if folder.exists():
        print(f"{stage.name}: resuming with the finished parts in {folder}", flush=True)
    command = [sys.executable, "-m", "plm_core.corpus.part_pool", str(folder), str(environment.processes())]
    workers = Pool(folder, environment.processes(), lambda: request_helpers(command), kept, stage.guard.code)
    keep = True
    try:
        yield workers
        keep = False
        for other in set(kept.glob("*")) - workers.used:
            _discard(other)
    except UserError:
        keep = False
        raise
    finally:
        workers.end()
        if not keep:
            _discard(folder)
            with contextlib.suppress(OSError):  # results are kept in it, or another node may just be leaving
                folder.parent.rmdir()


def _discard(folder: Path) -> None:
    """Rename a folder and then delete it: the rest of a half-deleted one could be mistaken for results."""
    going = folder.with_name(f".{folder.name.lstrip('.')}.going")
    shutil.rmtree(going, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(going)
    shutil.rmtree(going, ignore_errors=True)
