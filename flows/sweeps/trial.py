"""The process of a trial: ``python -m flows.sweeps.trial STAGE`` in the trial's checkout. Started by ``sweep.py``.

The stage and all that it depends on are brought up to date one after the other, without a Prefect server. Exit status:
that of the stage that failed; 2 if a person has to fix something; 75 if it was interrupted or a stage was killed, and
it will resume from its state when it is started again.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.processes.process import StageError
from flows.run.checkout import open_checkout
from flows.run.graph import Stage
from flows.run.reproduce import Reproducer
from flows.run.run_result import Spent
from plm_core.shared.errors import INTERRUPTED, USER_ERROR, UserError


def needed_stages(stages: Sequence[Stage], last: str) -> list[Stage]:
    """A stage and all that it depends on, from ``stages`` in their order."""
    # From the end: in this order a stage comes before all that it depends on.
    wanted = {last}
    for stage in reversed(stages):
        if stage.name in wanted:
            wanted.update(stage.upstream)
    return [stage for stage in stages if stage.name in wanted]


def main(last: str) -> int:
    """Bring the stage up to date in the current folder; returns the exit status."""
    logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout, level=logging.INFO)
    try:
        with open_checkout(Path.cwd(), False, print) as checkout:
            # One stage after the other: the sweep's other trials have the rest of the machine.
            reproducer = Reproducer(checkout)
            for stage in needed_stages(checkout.graph.stages, last):
                log = logging.getLogger(stage.name)
                try:
                    if reasons := reproducer.reasons(stage):
                        reproducer.run(stage, reasons, None, log, Spent())
                except StageError as error:
                    if error.transient or not stage.optional:
                        raise
                    log.warning("failed: %s", error)
    except StageError as error:
        print(f"error: {error}", flush=True)
        return INTERRUPTED if error.transient else error.status or 1
    except (UserError, OSError) as error:
        print(f"error: {error}", flush=True)
        return USER_ERROR if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("interrupted: it will resume from its state", flush=True)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
