"""The graph of stages as DVC reads it from ``dvc.yaml``: stages with their ``meta:``, their order, what is out of date.

Only this file, ``dvc_repair.py``, ``backup.py`` and ``output_checks.py`` import DVC. Its Python interface is not
public, so the version is pinned and every use is in these files. DVC takes 0.5 s to import, hence the imports in
functions.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from flows.run.dvc_repair import repair, repair_run_cache
from plm_core.shared.errors import UserError
from plm_core.shared.files import atomic_text, locked

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
    """The time limit of an attempt; None for no limit."""
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


class BusyError(GraphError):
    """Another running process uses the inputs or outputs of the stage."""


class EditedError(GraphError):
    """What a stage depends on changed while it ran."""


@dataclass(frozen=True)
class Command:
    """What DVC would run for a stage."""

    lines: tuple[tuple[str, ...], ...]
    """The commands, each a program and its arguments."""
    env: dict[str, str]
    """Variables to add to this process's environment."""


class Graph:
    """The stages of a repository, read once and kept in memory. Thread-safe.

    DVC's objects allow one thread at a time, its lock one process: both are held while DVC works, not while stages run.
    """

    def __init__(self, root: Path) -> None:
        """Read ``dvc.yaml`` and ``dvc.lock``, repaired if DVC was killed while writing. Raises GraphError: no DVC
        repository, a broken ``dvc.yaml``, or an unknown or wrong key of ``meta:``."""
        self._file = root / "dvc.yaml"
        self._mutex = threading.Lock()
        with _errors(self._file):
            from dvc.repo import Repo

            # No progress bars or lines about locks: errors are raised.
            logging.getLogger("dvc").setLevel(logging.CRITICAL)
            self._repo = Repo(str(root), _wait_for_lock=True)
        with self._locked() as repo:
            with self._cache_alone():
                mended = repair_run_cache(repo)
            self.mended = mended + repair(repo)
            """What was repaired, one sentence each."""
            self._nodes = _runnable(repo)
            self.stages = self._ordered()
            """The stages, each after all that it depends on."""
        self._busy: set[str] = set()
        """Stages on which another process was working: it may have recorded a result since ``dvc.lock`` was read."""

    def leave_out_others(self, models: Sequence[str]) -> None:
        """Leave out the stages that make other models than these, and all that need those. Raises UserError: a model is
        unknown."""
        made = {Path(stage.register["checkpoint"]).name: stage.name for stage in self.stages if stage.register}
        if unknown := [model for model in models if model not in made]:
            raise UserError(f"models: {', '.join(unknown)}; expected some of {', '.join(made)}")
        left_out = {name for model, name in made.items() if model not in models}
        for stage in self.stages:
            if not left_out.isdisjoint(stage.upstream):
                left_out.add(stage.name)
        self.stages = tuple(stage for stage in self.stages if stage.name not in left_out)

    def reasons(self, stage: str) -> list[str]:
        """Why this stage is not up to date; empty if it is. Ignores its upstreams: call this once they have ended.

        Raises:
            BusyError: another running process writes its inputs or outputs.
            GraphError: DVC fails.
        """
        from dvc.lock import LockError

        with self._locked() as repo:
            if stage in self._busy:
                repo._reset()
                self._nodes = _runnable(repo)
                self._busy.discard(stage)
            try:
                return _reasons(self._nodes[stage])
            except LockError:
                self._busy.add(stage)
                raise

    def status(self) -> dict[str, list[str]]:
        """Why each stage is not up to date, in order; an upstream that is out of date is a reason, too. Raises
        GraphError: DVC fails."""
        reasons: dict[str, list[str]] = {}
        for stage in self.stages:
            above = [name for name in stage.upstream if reasons[name]]
            try:
                reasons[stage.name] = self.reasons(stage.name)
            except BusyError:
                reasons[stage.name] = ["a running stage is writing its inputs or outputs"]
            if above:
                reasons[stage.name].append("upstream not up to date: " + ", ".join(above))
        return reasons

    def size(self, stage: str) -> int:
        """How many bytes the stage's outputs had when it last ran; 0 if it never has."""
        return sum((out.meta and out.meta.size) or 0 for out in self._nodes[stage].outs)

    @contextlib.contextmanager
    def reproducing(self, stage: str, force: bool = False) -> Iterator[Command | None]:
        """Do what ``dvc repro --single-item`` does around a stage's command, which the block runs.

        Yields None if the outputs came from DVC's cache. When the block succeeds, the outputs are kept and the
        result is recorded in ``dvc.lock``. The current folder must be the repository's: DVC's run cache expects that.

        Raises:
            BusyError: another running process uses its inputs or outputs.
            EditedError: a dependency changed during the block, so the result is not recorded.
            GraphError: DVC fails, for example because the stage did not write an output.
        """
        from dvc.stage.cache import RunCacheNotFoundError
        from dvc.stage.serialize import to_lockfile
        from dvc.utils.serialize import dumps_yaml

        node = self._nodes[stage]
        with self._kept_from_others(node), _unless_it_fails(node):
            with self._locked(), self._cache_alone():
                node.remove_outs(ignore_remove=False, force=False)
                # An output that the stage continues is part of its result, so DVC's run cache does not restore it.
                kept = [out for out in node.outs if out.persist and not out.exists and not out.changed_cache()]
                for out in kept:
                    out.checkout()
                cached = bool(kept) and not force and not node.changed()
                if not (force or cached):
                    with contextlib.suppress(RunCacheNotFoundError):
                        node.repo.stage_cache.restore(node)
                        cached = True
                node.save_deps()
                before = _values(node)
            yield None if cached else _command(node, stage)
            with self._locked():
                node.save_deps()
                # DVC hashes dependencies after a stage has ended: one that was edited in the meantime would be
                # recorded as the input of the old output.
                if changed := [name for name, value in _values(node).items() if before.get(name) != value]:
                    raise EditedError(
                        f"{', '.join(changed)} changed while the stage ran, so its result is not kept; run again"
                    )
                with self._cache_alone():
                    node.save()
                node.commit()
                lock = Path(node.dvcfile._lockfile.path)
                text = lock.read_text(encoding="utf-8") if lock.exists() else "schema: '2.0'\n"
                atomic_text(lock, merge_lock_entry(text, dumps_yaml({"stages": to_lockfile(node)})))

    @property
    def cache(self) -> Path:
        """The folder of DVC's cache."""
        return Path(self._repo.cache.local.path).parents[1]

    def given(self, stages: Iterable[str]) -> list[str]:
        """The files and folders of the repository that these stages read, and that no stage writes."""
        made = [Path(out.fs_path) for node in self._nodes.values() for out in node.outs]
        read = {Path(dep.fs_path) for name in stages for dep in self._nodes[name].deps if dep.protocol == "local"}
        root = Path(self._repo.root_dir)
        given = (path for path in read if path.is_relative_to(root) and not any(map(path.is_relative_to, made)))
        inputs = (path for path in given if not any(out.is_relative_to(path) for out in made))
        return sorted(path.relative_to(root).as_posix() for path in inputs)

    def _ordered(self) -> tuple[Stage, ...]:
        import networkx

        index = self._repo.index
        names = {node: name for name, node in self._nodes.items()}
        graph = index.graph.reverse()
        order = {node: number for number, node in enumerate(index.stages)}
        return tuple(
            Stage(
                name=names[node],
                upstream=tuple(sorted(names[up] for up in graph.predecessors(node) if up in names)),
                outs=tuple(sorted(Path(out.fs_path).relative_to(self._repo.root_dir).as_posix() for out in node.outs)),
                **read_meta(node.meta, f"{node.path_in_repo}: stages.{node.name}.meta"),
            )
            for node in networkx.lexicographical_topological_sort(graph, key=order.__getitem__)
            if node in names
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Any]:
        with _errors(self._file), self._mutex, self._repo.lock:
            yield self._repo

    @contextlib.contextmanager
    def _cache_alone(self) -> Iterator[None]:
        """Hold the run cache, which several checkouts may share: DVC takes another process's unfinished entry for its
        own, finds it damaged and deletes it."""
        self.cache.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # a folder on NFS cannot be locked
                held.enter_context(locked(self.cache))  # not a file in it, which would belong to the first user
            yield

    @contextlib.contextmanager
    def _kept_from_others(self, node: Any) -> Iterator[None]:
        """Hold DVC's locks on the stage's files, which other processes of DVC respect."""
        from dvc.rwlock import rwlock

        read, write = ([item.fs_path for item in items] for items in (node.deps, node.outs))
        held = contextlib.ExitStack()
        with self._locked() as repo:
            hardlink = repo.config["core"].get("hardlink_lock", False)
            held.enter_context(rwlock(repo.tmp_dir, repo.fs, " ".join(sys.argv), read, write, hardlink))
        try:
            yield
        finally:
            # Somebody may have removed the locks; no matter, the stage has ended, and its result is in dvc.lock.
            with self._locked(), contextlib.suppress(AssertionError):
                held.close()


@contextlib.contextmanager
def _errors(file: Path) -> Iterator[None]:
    """Turn DVC's exceptions into this module's."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    try:
        yield
    except LockError as error:
        raise BusyError(str(error)) from error
    except UnicodeEncodeError as error:  # DVC stores names as UTF-8
        name = os.fsencode(error.object).decode(errors="backslashreplace")
        raise GraphError(f"{name}: the name of this file is not UTF-8; rename it") from error
    except DvcException as error:
        raise GraphError(f"{file}: {error}") from error


@contextlib.contextmanager
def _unless_it_fails(node: Any) -> Iterator[None]:
    """Restore what is known of a stage if the block fails."""
    before = [(item, item.hash_info, item.meta) for item in (*node.deps, *node.outs)]
    try:
        yield
    except BaseException:
        for item, hash_info, meta in before:
            item.hash_info, item.meta = hash_info, meta
        raise


def _command(node: Any, name: str) -> Command:
    from dvc.env import DVC_STAGE
    from dvc.stage.run import _enforce_cmd_list, _make_cmd, get_executable, prepare_kwargs

    shell = get_executable() or "/bin/sh"
    env = prepare_kwargs(node)["env"] | {DVC_STAGE: name}
    return Command(
        tuple(tuple(_make_cmd(shell, line)) for line in _enforce_cmd_list(node.cmd)),
        {name: value for name, value in env.items() if os.environ.get(name) != value},
    )


def _values(node: Any) -> dict[str, Any]:
    return {str(dep): dep.hash_info.value for dep in node.deps}


def _runnable(repo: Any) -> dict[str, Any]:
    """The stages, by names that do not depend on the current folder; data added with ``dvc add`` has no command."""
    return {
        node.name if node.path_in_repo == "dvc.yaml" else f"{node.path_in_repo}:{node.name}": node
        for node in repo.index.stages
        if node.cmd
    }


def _reasons(node: Any) -> list[str]:
    (status,) = node.status().values() or [[]]
    if status and not any(item.hash_info for item in (*node.deps, *node.outs)):
        return ["never run"]
    changed: dict[str, list[str]] = {}
    for entry in status:
        if isinstance(entry, str):
            changed[entry] = []
            continue
        for kind, items in entry.items():
            for path, what in items.items():
                if isinstance(what, Mapping):
                    changed.setdefault("changed params", []).extend(what)
                else:
                    gone = what in ("deleted", "not in cache")
                    label = f"missing {kind.removeprefix('changed ')}" if gone else kind
                    changed.setdefault(label, []).append(path)
    return [f"{label}: {', '.join(names)}" if names else label for label, names in changed.items()]


def merge_lock_entry(lock: str, entry_text: str) -> str:
    """The text ``lock`` of a ``dvc.lock``, with the stage of ``entry_text``, the text of a ``dvc.lock`` of one stage.

    DVC itself parses all stages with their comments and writes them all again, which takes 1 s for 40.
    """
    before, entries, rest = _entries(lock if re.search("^stages:$", lock, re.MULTILINE) else f"{lock}stages:\n")
    by_name = {entry.partition("\n")[0]: entry for entry in (*entries, *_entries(entry_text)[1])}
    return "".join((before, *by_name.values(), rest))


def _entries(lock: str) -> tuple[str, list[str], str]:
    """The text before the stages, the text of each stage, and the text after them."""
    before, stages, rest = re.split(r"(?<=^stages:\n)((?:[ \n].*\n?)*)", lock, maxsplit=1, flags=re.MULTILINE)
    return before, re.split(r"^(?=  \S)", stages, flags=re.MULTILINE)[1:], rest
