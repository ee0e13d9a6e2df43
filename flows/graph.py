"""The graph of stages as DVC reads it from ``dvc.yaml``: what there is, in which order, and what is not up to
date.

Only this file and ``mending.py`` import DVC. Its Python interface is not public, so the version is pinned and every use
is there. DVC takes 0.5 s to import, hence the imports inside the functions. A ``Repo`` is never shared by two
threads.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

RETRIES = 2
"""How often a transient failure of a stage is tried again, unless its ``meta:`` says otherwise."""

REGISTER_KEYS = {"checkpoint", "evidence"}
"""What ``meta: register`` holds, each the path of an output."""


class GraphError(Exception):
    """``dvc.yaml`` is broken or says something that the flow does not know; the message names the place."""


class BusyError(GraphError):
    """A running process writes what was asked about."""


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
    retries: int = RETRIES
    """How often a transient failure is tried again."""
    register: dict[str, str] | None = None
    """Which outputs become a model version, for the stage that makes one."""
    outs: tuple[str, ...] = ()
    """The files and folders that it writes, relative to the repository."""


def load(root: Path) -> list[Stage]:
    """The stages of ``dvc.yaml`` with ``foreach`` and ``matrix`` resolved, each after all that it depends on.

    Raises:
        GraphError: no DVC repository, a broken ``dvc.yaml``, or a ``meta:`` key that is unknown or of a wrong
            type.
    """
    import networkx

    with _nodes(root) as (repo, nodes):
        names = {node: name for name, node in nodes.items()}
        graph = repo.index.graph.reverse()
        order = {node: number for number, node in enumerate(repo.index.stages)}
        ordered = networkx.lexicographical_topological_sort(graph, key=order.__getitem__)
        return [
            Stage(
                name=names[node],
                upstream=tuple(sorted(names[up] for up in graph.predecessors(node) if up in names)),
                outs=tuple(sorted(Path(out.fs_path).relative_to(repo.root_dir).as_posix() for out in node.outs)),
                **_meta(node),
            )
            for node in ordered
            if node in names
        ]


def stale(root: Path, stage: str) -> list[str]:
    """Why this stage is not up to date, empty when it is. Says nothing of its upstreams: ask when they ended.

    Raises:
        BusyError: a process that runs now writes its inputs or outputs.
        GraphError: as for ``load``.
    """
    with _nodes(root) as (_, nodes):
        return _reasons(nodes[stage])


def whole_status(root: Path) -> dict[str, list[str]]:
    """Why each stage is not up to date, for all of them in order; an upstream that is not is a reason too.

    Raises:
        GraphError: as for ``load``.
    """
    reasons: dict[str, list[str]] = {}
    stages = load(root)
    with _nodes(root) as (_, nodes):
        for stage in stages:
            above = [name for name in stage.upstream if reasons[name]]
            try:
                reasons[stage.name] = _reasons(nodes[stage.name])
            except BusyError:
                reasons[stage.name] = ["a running stage writes its inputs or outputs"]
            if above:
                reasons[stage.name].append("upstream not up to date: " + ", ".join(above))
    return reasons


def inputs(root: Path, stage: str) -> dict[str, Any]:
    """What the stage's dependencies hold now: digests of files, values of parameters; no missing ones.

    Raises:
        GraphError: as for ``load``.
    """
    with _nodes(root) as (_, nodes):
        return {str(dep): dep.get_hash().value for dep in nodes[stage].deps if dep.exists}


def retract_if_changed(root: Path, stage: str, before: Mapping[str, Any]) -> list[str]:
    """Take back the result of a stage whose dependencies changed while it ran; return the names of those.

    DVC hashes dependencies when a stage ends. One that was edited meanwhile would be recorded as what made
    the old output, and the stage would pass for up to date: its entry leaves ``dvc.lock`` and the run cache.

    Args:
        root: The repository.
        stage: The stage, which has just ended well.
        before: What ``inputs`` said just before it started.

    Raises:
        GraphError: as for ``load``.
    """
    from dvc.stage.cache import _can_hash, _get_stage_hash

    with _nodes(root) as (repo, nodes):
        node = nodes[stage]
        recorded = {str(dep): dep.hash_info.value for dep in node.deps}
        changed = [name for name, value in before.items() if recorded[name] != value]
        if changed:
            if _can_hash(node):
                key = _get_stage_hash(node)
                cached = Path(repo.stage_cache.cache_dir, key[:2], key)
                if cached.exists():
                    shutil.rmtree(cached)  # with its folder: DVC fails on an empty one
            node.dvcfile._lockfile.remove_stage(node)
        return changed


@contextlib.contextmanager
def _nodes(root: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The locked repository and what can run in it, by names that do not depend on the current folder."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root), _wait_for_lock=True) as repo, repo.lock:
            # Data added with `dvc add` is a node without a command. DVC's own address of a stage is relative
            # to the current folder.
            runnable = [node for node in repo.index.stages if node.cmd]
            yield repo, {_name(node): node for node in runnable}
    except DvcException as error:
        raise GraphError(f"{root / 'dvc.yaml'}: {error}") from error


def _name(node: Any) -> str:
    return str(node.name if node.path_in_repo == "dvc.yaml" else f"{node.path_in_repo}:{node.name}")


def _reasons(node: Any) -> list[str]:
    from dvc.lock import LockError

    try:
        (status,) = node.status().values() or [[]]
    except LockError as error:
        raise BusyError(str(error)) from error
    if status and not any(item.hash_info for item in (*node.deps, *node.outs)):
        return ["never run"]
    changed: dict[str, list[str]] = {}
    for entry in status:
        if isinstance(entry, str):
            changed[entry] = []
            continue
        for kind, items in entry.items():
            for path, what in items.items():
                label, names = _change(kind, path, what)
                changed.setdefault(label, []).extend(names)
    return [f"{label}: {', '.join(names)}" if names else label for label, names in changed.items()]


def _change(kind: str, path: str, what: str | Mapping[str, str]) -> tuple[str, list[str]]:
    if isinstance(what, Mapping):
        return "changed params", list(what)
    if what in ("deleted", "not in cache"):
        return "missing " + kind.removeprefix("changed "), [path]
    return kind, [path]


def _meta(node: Any) -> dict[str, Any]:
    meta = node.meta or {}
    place = f"{node.path_in_repo}: stages.{node.name}.meta"
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
        case "gpu":
            return "" if isinstance(value, bool) or value == "all" else "true, false or `all`"
        case "cores":
            return "" if value == "all" or is_int(1) else "a number of cores, 1 or more, or `all`"
        case "retries":
            return "" if is_int(0) else "a number of times, 0 or more"
        case "register":
            right = isinstance(value, dict) and value.keys() == REGISTER_KEYS
            right = right and all(isinstance(path, str) for path in value.values())
            return "" if right else f"a mapping of {' and '.join(sorted(REGISTER_KEYS))} to paths"
        case _:
            return "one of the keys gpu, cores, retries, register"
