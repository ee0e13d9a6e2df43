"""A stage as the flow sees it, and what ``meta:`` in ``dvc.yaml`` says of it. Read from DVC by ``flows/graph.py``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from flows.outcome import UserError

RETRIES = 2
"""How often a transient failure of a stage is tried again, unless its ``meta:`` says otherwise."""

MOST_MINUTES = 1_000_000
"""The longest limit of a stage's time: two years."""

REGISTER_KEYS = {"checkpoint", "evidence"}
"""What ``meta: register`` holds, each the path of an output."""


class GraphError(UserError):
    """``dvc.yaml`` is broken or says something that the flow does not know; the message names the place."""


@dataclass(frozen=True)
class Stage:
    """A node of ``dvc.yaml`` as the flow sees it."""

    name: str
    """DVC's address, such as ``pretrain@gpt``."""
    upstream: tuple[str, ...] = ()
    """The names of the stages whose outputs it reads."""
    gpu: bool | Literal["all"] = False
    """Whether it wants a GPU where the machine has one, or all that there are."""
    cores: int | Literal["all"] = 1
    """How many cores it wants."""
    nodes: Literal[1, "all", "together"] = 1
    """Whether it can use several nodes of a cluster: ``all`` that come, for it works on parts of a corpus, or
    ``together``, for it trains one model and begins when all are there."""
    retries: int = RETRIES
    """How often a transient failure is tried again."""
    minutes: float | None = None
    """How long a try may take before it is ended; None for as long as it likes."""
    optional: bool = False
    """Whether the others go on without it when it fails, those that read its outputs among them."""
    register: dict[str, str] | None = None
    """Which outputs become a model version, for the stage that makes one."""
    outs: tuple[str, ...] = ()
    """The files and folders that it writes, relative to the repository."""


def read_meta(meta: Any, place: str) -> dict[str, Any]:
    """What a stage's ``meta:`` says, as fields of a ``Stage``; ``place`` names it in messages.

    Raises:
        GraphError: a key is unknown, or its value of a wrong type.
    """
    meta = meta or {}
    if not isinstance(meta, dict):
        raise GraphError(f"{place}: {meta!r}; expected a mapping")
    for key, value in meta.items():
        expected = _wrong(key, value)
        if expected:
            raise GraphError(f"{place}.{key}: {value!r}; expected {expected}")
    return cast("dict[str, Any]", meta)


def _wrong(key: str, value: Any) -> str:
    """What a value of ``meta:`` should have been, empty when it is right."""

    def is_int(least: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    match key:
        case "optional":
            return "" if isinstance(value, bool) else "true or false"
        case "gpu":
            return "" if isinstance(value, bool) or value == "all" else "true, false or `all`"
        case "cores":
            return "" if value == "all" or is_int(1) else "a number of cores, 1 or more, or `all`"
        case "nodes":
            return "" if value in (1, "all", "together") else "1, `all` or `together`"
        case "minutes":
            right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_MINUTES
            return "" if right else f"a number of minutes above 0, at most {MOST_MINUTES:,}"
        case "retries":
            return "" if is_int(0) else "a number of times, 0 or more"
        case "register":
            right = isinstance(value, dict) and value.keys() == REGISTER_KEYS
            right = right and all(isinstance(path, str) for path in value.values())
            return "" if right else f"a mapping of {' and '.join(sorted(REGISTER_KEYS))} to paths"
        case _:
            return "one of the keys gpu, cores, nodes, minutes, retries, optional, register"


class Registration(Protocol):
    """What registers what the stages made: the module ``flows.promotion``, or what stands in for it."""

    def due(self, root: Path, stages: Sequence[Stage], /) -> bool:
        """Whether there is anything to register."""

    def register(
        self, root: Path, stages: Sequence[Stage], parent_run_id: str | None, tell: Callable[[Any], object], /
    ) -> object:
        """Register it; ``tell`` hears what became of each version as soon as that is known."""
