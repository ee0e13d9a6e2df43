"""Registration as a task of the flow: it is retried if MLflow fails, and outcomes are reported as they happen.

Called by ``flows/flow.py``; slow to import.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import prefect
from prefect import State
from prefect.cache_policies import NO_CACHE

from flows.outcome import FailedError
from flows.stages import Registration, Stage
from flows.store import RegistrationFailed

RETRY_DELAYS_S = [2.0, 10.0]
"""How long to wait before each retry, if MLflow cannot be reached or fails."""


def registered(
    root: Path,
    stages: Sequence[Stage],
    parent_run_id: str | None,
    registration: Registration,
    tell: Callable[[Any], object],
) -> None:
    """Register what the stages made; calls ``tell`` with the outcome of each version, whatever fails afterwards.

    Raises:
        FailedError: the registration failed.
    """

    def register() -> None:
        registration.register(root, stages, parent_run_id, tell)

    def worth_another_try(_task: object, _run: object, state: State[Any]) -> bool:
        return isinstance(state.result(raise_on_failure=False), RegistrationFailed)

    task = prefect.Task(
        register,
        name="register",
        task_run_name="register",
        retries=len(RETRY_DELAYS_S),
        retry_delay_seconds=RETRY_DELAYS_S,
        retry_condition_fn=worth_another_try,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    state = task(return_state=True)
    if not state.is_completed():
        raise FailedError(f"register: {state.message}")
