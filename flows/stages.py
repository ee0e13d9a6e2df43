"""A stage as the flow sees it, with its ``meta:`` in ``dvc.yaml``. Read from DVC by ``flows/graph.py``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from flows.outcome import UserError

RETRIES = 2
"""How often a stage is retried after a transient failure, unless its ``meta:`` says otherwise."""

MOST_MINUTES = 1_000_000
"""The largest time limit of a stage: two years."""

REGISTER_KEYS = {"checkpoint", "evidence"}
"""The keys of ``meta: register``; each value is the path of an output."""


class GraphError(UserError):
    """``dvc.yaml`` is broken, or contains something that the flow does not know; the message names the place."""


@dataclass(frozen=True)
class Stage:
    """A node of ``dvc.yaml`` as the flow sees it."""

    name: str
    """DVC's address, such as ``pretrain@gpt``."""
    upstream: tuple[str, ...] = ()
    """The names of the stages whose outputs it reads."""
    gpu: bool | Literal["all"] = False
    """Whether it wants a GPU if the machine has one, or all GPUs."""
    cores: int | Literal["all"] = 1
    """How many cores it wants."""
    nodes: Literal[1, "all", "together"] = 1
    """Whether it can use several nodes of a cluster: ``all``, as they join, because it works on parts of a corpus, or
    ``together``, because it trains one model and begins when all have joined."""
    retries: int = RETRIES
    """How often it is retried after a transient failure."""
    minutes: float | None = None
    """The time limit of a try; None for no limit."""
    optional: bool = False
    """Whether the others continue without it if it fails, including those that read its outputs."""
    register: dict[str, str] | None = None
    """Which outputs become a model version, for the stage that makes one."""
    outs: tuple[str, ...] = ()
    """The files and folders that it writes, relative to the repository."""


def read_meta(meta: Any, place: str) -> dict[str, Any]:
    """The ``meta:`` of a stage as fields of a ``Stage``; ``place`` names it in messages.

    Raises:
        GraphError: a key is unknown, or its value has a wrong type.
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
    """What a value of ``meta:`` should have been; empty if it is right."""

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
    """Registers what the stages made: the module ``flows.promotion``, or a replacement."""

    def needed(self, root: Path, stages: Sequence[Stage], /) -> bool:
        """Whether there is anything to register."""

    def register(
        self, root: Path, stages: Sequence[Stage], parent_run_id: str | None, tell: Callable[[Any], object], /
    ) -> object:
        """Register it; calls ``tell`` with the outcome of each version as soon as it is known."""
