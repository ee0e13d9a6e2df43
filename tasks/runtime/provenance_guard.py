"""The provenance guard: what a stage started with must be unchanged when it ends. Every stage runs inside one.

DVC hashes a stage's dependencies when its command has *ended*: a source file or parameter edited in the meantime
would be recorded as what made the old output, and the stage as up to date. The guard makes such a stage fail
instead.
"""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from plm_core.config import UserError, digest
from plm_core.shared.environment import process_start
from plm_core.shared.files import sha256_file
from tasks.parameters import stage_parameters

OWN_PACKAGES = ("tasks", "plm_core")
GRAPH = Path("dvc.yaml")
HALF_WRITTEN = 0.5
"""Seconds after which a changed section is read again: an editor may just have been saving another section."""


class Edited(UserError):
    """A source file, parameter or input changed while the stage ran."""


class Guard:
    """Remembers sources, sections of the parameters and inputs; ``check`` compares."""

    def __init__(self, sections: Sequence[str], inputs: Iterable[Path]) -> None:
        """Raises Edited when a source file is newer than this process: it may not be the one that was loaded."""
        # When this process began, in seconds since 1970, rounded up by two ticks: still before it read its sources.
        # psutil adds the ticks to the time of boot, which the kernel reports only in whole seconds.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(process_start(os.getpid())) / os.sysconf("SC_CLK_TCK")
        self._started = time.time() - age + 0.02
        self._sources = {path: sha256_file(path) for path in loaded_sources()}
        self._listed = {path: sha256_file(path) for path in listed_sources() if path not in self._sources}
        self.sections = {name: stage_parameters.read(name) for name in sections}
        self._inputs = {path: _stat(path) for path in inputs}
        self._require_older(self._sources)

    @property
    def code(self) -> str:
        """The digest of the first-party source files when the guard began: those already loaded, and those that DVC
        lists for the stage, some of which are loaded later."""
        return digest({path.as_posix(): sha for path, sha in (self._sources | self._listed).items()})

    def check(self) -> None:
        """Raise Edited if anything has changed; cheap enough for every report of a training run."""
        sources = loaded_sources()
        for path, sha in self._sources.items():
            if not path.is_file() or sha256_file(path) != sha:
                raise _edited(path)
        self._require_older(path for path in sources if path not in self._sources)
        for name, value in self.sections.items():
            if not stage_parameters.has_value(name, value):
                time.sleep(HALF_WRITTEN)
                if not stage_parameters.has_value(name, value):
                    raise _edited(f"{stage_parameters.PARAMS} ({name})")
        for path, before in self._inputs.items():
            if _stat(path) != before:
                raise _edited(path)

    def _require_older(self, sources: Iterable[Path]) -> None:
        for path in sources:
            # A date in the future comes from another clock, or from this one before it was set: it proves nothing.
            if self._started < path.stat().st_mtime <= time.time():
                raise _edited(path)


def loaded_sources() -> list[Path]:
    """The files of the first-party modules that this process has imported, and the templates that it has read, relative
    to the project."""
    root = Path.cwd()
    # Not imported here, or every stage would depend on how templates are filled in.
    templates = getattr(sys.modules.get("plm_core.templates"), "READ", ())
    files = [
        getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name == "__main__" or name.split(".")[0] in OWN_PACKAGES
    ]
    paths = {Path(file).resolve() for file in (*files, *templates) if file}
    return sorted(path.relative_to(root) for path in paths if path.is_relative_to(root))


def listed_sources() -> list[Path]:
    """The source files that ``dvc.yaml`` lists for the stage that this process runs; none if it is not a stage."""
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    graph = yaml.load(GRAPH.read_text(encoding="utf-8"), yaml.CSafeLoader) if GRAPH.exists() else {"stages": {}}
    stages = [stage.get("do", stage) for stage in graph["stages"].values()]
    deps = [Path(dep) for stage in stages if stage["cmd"].split()[2] == module for dep in stage["deps"]]
    listed = [path for path in deps if path.parts[0] in OWN_PACKAGES]
    files = {file for path in listed for file in (path.rglob("*") if path.is_dir() else [path])}
    return sorted(file for file in files if file.suffix in (".py", ".j2") and file.exists())


def _stat(path: Path) -> list[tuple[str, int, int]]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [(file.as_posix(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _edited(what: Any) -> Edited:
    return Edited(
        f"{what}: changed while the stage ran, so its result belongs to neither version; "
        "run again (if you undo the change, training resumes from its snapshot)"
    )
