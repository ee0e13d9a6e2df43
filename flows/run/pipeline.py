"""``plm run``: the whole graph of stages once, under Prefect. Returns at once if there is nothing to do.

Prefect takes 2 s to import and its server 6 s to start, so this module imports it only if there is work to do. The
flow itself, which runs stages in parallel, is in ``flow.py``.
"""

import contextlib
import os
import sys
from pathlib import Path

from flows.processes import executor
from flows.processes.resources import Machine
from flows.registry import mlflow_client
from flows.run import live_table, timing
from flows.run.checkout import Checkout, nothing_to_do, open_checkout
from flows.run.parent_run import Track, pipeline_run, send_leftovers
from flows.run.run_result import FailedError, Result
from flows.schedule import history, prefect_server


def run(root: Path, *, force: bool = False) -> Result:
    """Bring every stage of a checkout up to date, independent ones side by side, then register what they made.

    If a Prefect server is configured, each call is a flow run there. Without one, the call returns at once if all is
    up to date; otherwise the run has its own server, on the user's usual local database.

    Raises:
        UserError: another pipeline runs in this checkout, parameters cannot be used, the configured server does not
            answer, or ``PLM_CORES``, ``PLM_GPUS`` or ``PLM_CLUSTER`` cannot be used.
        GraphError: ``dvc.yaml`` is broken.
    """
    root = root.resolve()
    prepare_environment(root)
    executor.detect()
    print("reading dvc.yaml and the parameters", file=sys.stderr, flush=True)
    with open_checkout(root, force, mlflow_client.warn) as checkout:
        history.notify_missed(root)
        if checkout.stale:
            print(f"stages to run: {len(checkout.stale)}", file=sys.stderr, flush=True)
        if configured := prefect_server.configured_url():
            prefect_server.require_access(configured, "start one with `plm ui prefect`, or unset it to run without")
            return _run_flow(checkout)
        if result := nothing_to_do(checkout):
            send_leftovers(root)
            return result
        # The tracking run is opened here, not by the flow: that takes seconds, in which the server can start.
        tracked = pipeline_run(root) if checkout.stale else contextlib.nullcontext()
        results: list[Result] = []
        with (
            contextlib.suppress(FailedError),
            prefect_server.LocalServer(root / ".dvc/tmp/plm-server.log") as local,
            tracked as parent_run_id,
            local.environment(),
        ):
            results.append(_run_flow(checkout, lambda _: contextlib.nullcontext(parent_run_id)))
            if not results[0].ok:
                # The flow has caught the failure, and the tracking run, which is opened here, has to see it as well.
                raise FailedError(results[0].error)
        return results[0]


def prepare_environment(root: Path) -> None:
    """Set the environment variables that tools read when they are imported; what the user has set stays.

    If Prefect's folder cannot be written, as in a container without a home, one in the checkout ``root`` replaces it.
    """
    home = prefect_server.home()
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    if not os.access(home, os.W_OK):
        instead = root / ".dvc/tmp/home"
        os.environ |= {"PREFECT_HOME": str(instead / "prefect"), "MPLCONFIGDIR": str(instead / "matplotlib")}
        print(f"warning: {home} cannot be written: Prefect uses {instead}", file=sys.stderr, flush=True)
    for name, value in {
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Threads that wait for each other sleep instead of spinning: as fast alone, twice as fast next to other work.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": "%(asctime)s | %(task_run_name)s | %(message)s",
        "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": "%(asctime)s | %(message)s",
    }.items():
        os.environ.setdefault(name, value)


def _run_flow(checkout: Checkout, track: Track | None = None) -> Result:
    import prefect

    from flows.run import flow

    results: list[Result] = []
    stale = [stage for stage in checkout.graph.stages if stage.name in checkout.stale]
    took = {name: seconds for name, (seconds, _) in timing.last_durations(checkout.root).items()}
    with live_table.show_stages(stale, took, Machine.detect().cores):
        plm = flow.make_flow(checkout, track, results.append)
        with prefect.tags(checkout.root.name):
            state = plm(str(checkout.root), force=checkout.force, return_state=True)
    if not results:
        state.result()  # raises what kept the stages from being checked
    return results[0]
