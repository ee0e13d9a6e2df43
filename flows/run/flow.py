"""The Prefect flow ``plm``: one task per stage of ``dvc.yaml``, then registration. Slow to import.

Prefect decides when a stage runs, in what order, how often and on which share of the machine; DVC decides whether it
has to run at all, once its upstreams have ended. Called by ``pipeline.py`` and by deployments.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import prefect
from prefect import State, allow_failure
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.maintenance import garbage
from flows.processes.process import StageError
from flows.processes.resources import CancelledError, FullError, announce_pipeline
from flows.registry import promotion
from flows.registry.mlflow_client import RegistrationFailed
from flows.run import live_table, run_artifacts, timing
from flows.run.checkout import Checkout, HeldError, nothing_to_do, open_checkout
from flows.run.graph import BusyError, GraphError, Stage
from flows.run.parent_run import Track, pipeline_run, send_leftovers
from flows.run.reproduce import Reproducer
from flows.run.run_result import FailedError, Result, Spent, StageOutcome
from flows.schedule import history
from flows.schedule.prefect_server import FLOW, close_dead_runs
from plm_core.shared import environment
from plm_core.shared.environment import SAVING_S
from plm_core.shared.errors import UserError

RETRY_DELAYS_S = [2.0, 10.0, 30.0]
"""How long to wait before the first, the second and every later retry."""
REGISTRATION_DELAYS_S = [2.0, 10.0]
"""How long to wait before each retry of the registration, if MLflow fails or the champion has changed meanwhile."""

WORTH_FORKING = 4
"""Start the fork server only if at least this many stages have to run."""


class Execution:
    """One run of the graph, inside a flow run."""

    def __init__(self, checkout: Checkout) -> None:
        self.outcomes: dict[str, StageOutcome] = {}
        self._root, self._graph = checkout.root, checkout.graph
        self._reproducer = Reproducer(checkout)
        self.processes, self.begun = self._reproducer.processes, self._reproducer.begun
        self._errors: dict[str, StageError] = {}

    def run_stages(self, parent_run_id: str | None) -> None:
        """Run every stage that has to run, and wait for all."""
        # Submit all at once: each task waits for its upstreams by itself.
        futures: dict[str, PrefectFuture[Any]] = {}
        optional = {stage.name: stage.optional for stage in self._graph.stages}
        for stage in self._graph.stages:
            # Other stages do without the outputs of an optional one that fails.
            upstream = [
                allow_failure(futures[name]) if optional[name] and not stage.optional else futures[name]
                for name in stage.upstream
            ]
            futures[stage.name] = self._task(stage, parent_run_id).submit(return_state=False, wait_for=upstream)

        # Collect the outcomes in the order of the graph, so that those of upstreams are known.
        for stage in self._graph.stages:
            futures[stage.name].wait()
            if stage.name in self.outcomes:
                continue
            # Its task has recorded nothing: it was not started, or an error of the flow ended it.
            if bad := [name for name in stage.upstream if not self.outcomes[name].ok]:
                self.outcomes[stage.name] = StageOutcome(stage.name, "not run", reason=f"needs {', '.join(bad)}")
            else:
                why = str(futures[stage.name].state.message)
                self._errors[stage.name] = StageError(stage.name, None, [why], transient=False)
                self.outcomes[stage.name] = StageOutcome(stage.name, "failed", reason=why)
        if not_run := [name for name, outcome in self.outcomes.items() if outcome.outcome == "not run"]:
            get_run_logger().warning("not run, because stages they need failed: %s", ", ".join(not_run))
        timing.save_durations(self._root, self.outcomes.values())

    @property
    def error(self) -> str:
        """Why the run failed: the line of the first stage that failed; empty if all is well."""
        return str(next(iter(self._errors.values()))) if self._errors else ""

    @property
    def complete(self) -> bool:
        """Whether every stage, except optional ones, is up to date."""
        return all(stage.optional or self.outcomes[stage.name].ok for stage in self._graph.stages)

    def _task(self, stage: Stage, parent_run_id: str | None) -> "prefect.Task[[], State[Any]]":
        def reproduce() -> State[Any]:
            return self._reproduce(stage, parent_run_id)

        # A plain function, not a method: Prefect checks for that.
        def worth_another_try(*_: object) -> bool:
            error = self._errors.get(stage.name)
            return error is not None and error.transient and not self.processes.interrupted.is_set()

        return prefect.Task(
            reproduce,
            name=stage.name,
            task_run_name=stage.name.replace("{", "{{").replace("}", "}}"),
            tags=["gpu"] if stage.gpu else [],
            retries=stage.retries,
            retry_delay_seconds=RETRY_DELAYS_S[: max(stage.retries, 1)],
            retry_condition_fn=worth_another_try,
            cache_policy=NO_CACHE,
            persist_result=False,
        )

    def _reproduce(self, stage: Stage, parent_run_id: str | None) -> State[Any]:
        log, spent = get_run_logger(), Spent()
        self.outcomes.pop(stage.name, None)  # left from the previous attempt
        try:
            reasons = self._reproducer.reasons(stage)
            if not reasons:
                self._errors.pop(stage.name, None)
                self.outcomes[stage.name] = StageOutcome(stage.name, "up to date")
                log.info("up to date", extra={"stage_event": "up to date"})
                return Completed(name="UpToDate", message="up to date")
            self._reproducer.run(stage, reasons, parent_run_id, log, spent)
        except (StageError, GraphError, FullError, CancelledError) as error:
            if isinstance(error, StageError):
                failed = error
            else:
                why = str(error) or "cancelled before it started"
                failed = StageError(stage.name, None, [why], transient=isinstance(error, BusyError))
            before = self._errors.get(stage.name)
            if failed.over and before and before.over:  # timed out twice: retry only if training progressed in between
                failed.transient = failed.saved not in ("", before.saved)
            self._errors[stage.name] = failed
            self.outcomes[stage.name] = StageOutcome(stage.name, "failed", spent, failed.reason, failed.status)
            if stage.optional:  # stages that read the folder of such outputs then find it empty rather than missing
                for out in stage.outs:
                    (self._root / out).parent.mkdir(parents=True, exist_ok=True)
            log.error("failed: %s", failed, extra={"stage_event": "failed"})
            raise failed from None
        finally:
            spent.seconds = time.monotonic() - self.begun - spent.begun if spent.begun else 0.0
        self._errors.pop(stage.name, None)
        self.outcomes[stage.name] = StageOutcome(stage.name, "ran", spent, "; ".join(reasons))
        log.info("done in %.1f s", spent.seconds, extra={"stage_event": "done"})
        return Completed(message=f"ran for {spent.seconds:.1f} s")


def make_flow(
    checkout: Checkout | None = None,
    track: Track | None = None,
    report: Callable[[Result], None] | None = None,
) -> "prefect.Flow[..., State[Any]]":
    """The flow; deployments run it with the checkout that its parameters name, which it locks.

    ``checkout`` is one that is already held, ``track`` replaces ``pipeline_run``, and ``report`` is called with the
    result, which a failed flow cannot return.
    """
    runner: TaskRunner[Any] = ThreadPoolTaskRunner()

    @prefect.flow(name=FLOW, flow_run_name="{root}", task_runner=runner, persist_result=False)
    def plm(root: str = ".", force: bool = False, models: tuple[str, ...] = (), reason: str = "") -> State[Any]:
        """Bring every stage of a checkout up to date, then register what they made.

        Args:
            root: The checkout, on the machine that runs the flow.
            force: Run every stage, up to date or not.
            models: Run only the stages of these models, such as gpt, and what they need. Without any: all stages.
            reason: Say why; it is kept in the artifacts of the run and, as the tag plm.reason, in MLflow.
        """
        for name in ("prefect.task_runs", "prefect.flow_runs"):
            logging.getLogger(name).addFilter(live_table.is_news)
        folder = Path(root).resolve()
        try:
            with contextlib.nullcontext(checkout) if checkout else _taken(folder, force, models) as held:
                with history.recorded_run(folder) as tell:
                    close_dead_runs(folder)
                    tell(result := execute(held, track or functools.partial(pipeline_run, reason=reason)))
                    run_artifacts.publish(folder, result, reason)
                garbage.collect_after_run(folder)
        except HeldError as error:
            # Every run covers everything: the other run, or the next one, does what this one would have done.
            return Completed(name="Skipped", message=str(error))
        if report:
            report(result)
        if not result.ok:
            return Failed(message=result.error)
        return Completed(
            message=f"ran: {', '.join(result.ran)}" if result.ran else "nothing has changed, so nothing ran"
        )

    return plm


@contextlib.contextmanager
def _taken(folder: Path, force: bool, models: Sequence[str]) -> Iterator[Checkout]:
    """Hold the checkout for a scheduled run, and record why if that is not possible."""
    environment.lead()  # a worker may have inherited anything from the shell that started it
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(open_checkout(folder, force, get_run_logger().warning, models))
        except HeldError as error:
            history.record_skip(folder, str(error))
            raise
        except UserError as error:
            history.record_failure(folder, str(error))
            raise
        yield held


plm = make_flow()


def execute(checkout: Checkout, track: Track) -> Result:
    """The flow's body: the stages, then the registration. See ``pipeline.run``."""
    # Without stages to run there is no run in MLflow, and so no publisher that would send what is left of earlier ones.
    root = checkout.root
    stages = checkout.graph.stages
    if not checkout.stale:
        send_leftovers(root)
    if result := nothing_to_do(checkout):
        return result
    execution = Execution(checkout)
    track = track if checkout.stale else lambda _: contextlib.nullcontext()
    forked = execution.processes.forked() if len(checkout.stale) >= WORTH_FORKING else contextlib.nullcontext()
    warn = get_run_logger().warning
    error = ""
    models: list[Any] = []  # filled as versions are judged, so that decisions are reported whatever fails afterwards
    registering = 0.0
    try:
        with announce_pipeline(warn), contextlib.chdir(root), track(root) as parent_run_id:
            with forked, run_artifacts.progress(root):
                try:
                    execution.run_stages(parent_run_id)
                except BaseException:
                    # Prefect raises a cancellation in this thread only: the tasks' threads would not notice, and would
                    # be killed.
                    warn("stopping; running stages have %.0f minutes to save their state", SAVING_S / 60)
                    execution.processes.interrupt_all()
                    raise
            # Registered as soon as all but optional stages are up to date, even if an optional one has failed.
            if execution.complete and promotion.registration_needed(root, stages):
                begun = time.monotonic()
                state = _registration(root, stages, parent_run_id, models.append)(return_state=True)
                if not state.is_completed():
                    raise FailedError(f"register: {state.message}")
                registering = time.monotonic() - begun
            if execution.error:
                raise FailedError(execution.error)
    except FailedError as failure:
        error = str(failure)
    outcomes = tuple(execution.outcomes[stage.name] for stage in stages)
    return Result(outcomes, error, registering, tuple(models))


def _registration(*given: Any) -> "prefect.Task[[], None]":
    """The registration of what the stages made, as a task that is retried if MLflow fails."""

    def register() -> None:
        promotion.register(*given)

    def worth_another_try(_task: object, _run: object, state: State[Any]) -> bool:
        return isinstance(state.result(raise_on_failure=False), RegistrationFailed)

    return prefect.Task(
        register,
        name="register",
        task_run_name="register",
        retries=len(REGISTRATION_DELAYS_S),
        retry_delay_seconds=REGISTRATION_DELAYS_S,
        retry_condition_fn=worth_another_try,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
