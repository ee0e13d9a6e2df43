"""A stage as the flow sees it, with its ``meta:`` in ``dvc.yaml``. Read from DVC by ``flows/graph.py``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from flows.outcome import UserError

RETRIES = 2
"""How often a stage is retried after a transient failure, unless its ``meta:`` says otherwise."""

MOST_MINUTES = 1_000_000
"""The largest time limit of a stage: two years."""


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
    """The outputs that become a model version, for the stage that makes one: ``checkpoint`` and ``evidence``."""
    outs: tuple[str, ...] = ()
    """The files and folders that it writes, relative to the repository."""


def _is_int(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


META: dict[str, tuple[Callable[[Any], bool], str]] = {
    "gpu": (lambda value: isinstance(value, bool) or value == "all", "true, false or `all`"),
    "cores": (lambda value: value == "all" or _is_int(value, 1), "a number of cores, 1 or more, or `all`"),
    "nodes": (lambda value: value in (1, "all", "together"), "1, `all` or `together`"),
    "minutes": (
        lambda value: type(value) in (int, float) and 0 < value <= MOST_MINUTES,
        f"a number of minutes above 0, at most {MOST_MINUTES:,}",
    ),
    "retries": (lambda value: _is_int(value, 0), "a number of times, 0 or more"),
    "optional": (lambda value: isinstance(value, bool), "true or false"),
    "register": (
        lambda value: (
            isinstance(value, dict)
            and value.keys() == {"checkpoint", "evidence"}
            and all(isinstance(path, str) for path in value.values())
        ),
        "a mapping of checkpoint and evidence to paths",
    ),
}
"""For each key of ``meta:``, whether a value is right, and what is expected."""


def read_meta(meta: Any, place: str) -> dict[str, Any]:
    """The ``meta:`` of a stage as fields of a ``Stage``; ``place`` names it in messages. Raises GraphError: a key is
    unknown, or its value has a wrong type."""
    meta = meta or {}
    if not isinstance(meta, dict):
        raise GraphError(f"{place}: {meta!r}; expected a mapping")
    for key, value in meta.items():
        right, expected = META.get(key, (lambda _: False, f"one of the keys {', '.join(META)}"))
        if not right(value):
            raise GraphError(f"{place}.{key}: {value!r}; expected {expected}")
    return cast("dict[str, Any]", meta)
