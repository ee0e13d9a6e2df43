"""The registry in MLflow: versions, decisions, aliases, and runs that will never end."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from flows import settings
from flows.health import decisions, runs, versions
from flows.health.finding import Finding, Note
from flows.registry import Registry, opened
from plm_core.shared.stores import made


def registry(root: Path, everything: bool) -> Iterator[Finding | Note]:
    """All problems of the registry."""
    if not made(settings.read(root)[0].uri):
        yield Note("MLflow: nothing is registered yet")
        return

    def later(do: Callable[[Registry], object]) -> Callable[[], None]:
        return partial(_apply, root, do)

    with opened(root) as found:
        yield from versions.check(found, everything, later)
        yield from decisions.check(found, later)
        yield from runs.check(root, found, later)


def _apply(root: Path, do: Callable[[Registry], object]) -> None:
    with opened(root) as found:
        do(found)
