"""What the modules that talk to MLflow share: its environment, errors and warnings, paged searches, a digest."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plm_core.shared.errors import UserError
from plm_core.shared.files import sha256
from tasks.tracking.mlflow_stores import QUIET, without_credentials

ENVIRONMENT = {
    **QUIET,
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # With MLflow's defaults, a dead server blocks a call for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}


class RegistryError(UserError):
    """The registry cannot do what was asked; the message says why, without the user or password of an address."""

    def __init__(self, message: str) -> None:
        super().__init__(without_credentials(message))


class RegistrationFailed(RegistryError):
    """MLflow cannot be reached or fails, or the champion has changed meanwhile: worth another try. The files of the
    pipeline are safe; a later run registers them."""


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """Set MLflow's environment, which it reads at every call, for the block. Processes started later must not inherit
    it, nor what MLflow itself sets: ``set_tracking_uri`` exports its store to all of them."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in before})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("MLFLOW_") or name in ENVIRONMENT]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@contextlib.contextmanager
def skip_if_deleted() -> Iterator[None]:
    """Skip the block if a run, or what it held, was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except FileNotFoundError:
        return
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"):
            raise


def evidence_digest(files: Sequence[Path]) -> str:
    """The sha256 (hex) of the files' digests and names, in this order."""
    return hashlib.sha256("".join(f"{sha256(path)}  {path.name}\n" for path in files).encode()).hexdigest()


def pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """The results of a search, page after page."""
    page: str | None = None
    while True:
        results = search(page)
        yield from results
        if not (page := results.token):
            return


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)
