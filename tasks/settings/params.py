"""`params.yaml`: a section becomes a frozen configuration. The one place where a task reads YAML."""

import copy
import functools
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from plm_core.config import UserError, did_you_mean, from_dict
from plm_core.shared import paths

T = TypeVar("T")
PARAMS = Path("params.yaml")


class _StrictLoader(yaml.CSafeLoader):
    """YAML without two traps: a key that appears twice, and one such as ``no``, which means false. It uses libyaml, ten
    times as fast as PyYAML's own parser."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            where = f"{PARAMS}:{key.start_mark.line + 1}: {key.value}"
            if keys.count(key.value) > 1:
                raise UserError(f"{where} appears twice in its section")
            if key.tag == "tag:yaml.org,2002:bool":
                raise UserError(f"{where} as a name is true or false in YAML; expected it in quotes")
        return super().construct_mapping(node, deep)


# A date is text, as in JSON: sections are checked as JSON.
_StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def read(name: str) -> Any:
    """The plain value of a dotted section, such as ``pretrain.gpt``.

    Raises:
        UserError: the file is missing or not YAML, or has no such section.
    """
    try:
        value = _parsed(PARAMS.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{PARAMS}: missing; run this in the project's folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{PARAMS}: not valid YAML: {' '.join(str(error).split())}") from error
    for depth, key in enumerate(name.split(".")):
        if not isinstance(value, dict) or key not in value:
            place = ".".join(name.split(".")[: depth + 1])
            known = f"; it has {', '.join(map(str, value))}" if isinstance(value, dict) else ""
            raise UserError(f"{place}: no such section in {PARAMS}{known}")
        value = value[key]
    return copy.deepcopy(value)


@functools.lru_cache(maxsize=1)
def _parsed(text: str) -> Any:
    """Parsed once while it stays the same: a stage reads many sections, and does so again at every report."""
    return yaml.load(text, _StrictLoader)


def says(name: str, value: object) -> bool:
    """Whether this dotted section can be read and is ``value``."""
    try:
        return bool(read(name) == value)
    except UserError:
        return False


def section(name: str, cls: type[T]) -> T:
    """A dotted section as its dataclass; UserError names the dotted parameter that is wrong."""
    return from_dict(cls, read(name), name)


def without(name: str, other: str, cls: type[T]) -> T:
    """``section`` without its parameter ``other``, which belongs to the flow."""
    value = read(name)
    return from_dict(cls, {k: v for k, v in value.items() if k != other} if isinstance(value, dict) else value, name)


def section_names(section: str) -> list[str]:
    """The names of the sections below ``sources`` or ``examples``, sorted.

    Raises:
        UserError: there is none, or one cannot be the name of a file and of a stage.
    """
    found = read(section)
    if not isinstance(found, dict) or not found:
        raise UserError(f"{section}: found {found!r}; expected at least one section below it")
    for name in found:
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
            raise UserError(
                f"{section}: found the name {name!r}; expected letters, digits, - and _ (a number in quotes)"
            )
    return sorted(found)


def names(name: str) -> list[str]:
    """A dotted parameter that is a list of names; UserError for anything else."""
    value = read(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{name}: found {value!r}; expected a list of names")
    return value


def require_examples(where: str, tasks: Iterable[str]) -> None:
    """Raise UserError, which begins with ``where``, if one of the tasks is not a section of ``examples``."""
    known = section_names("examples")
    for task in tasks:
        if task not in known:
            hint = did_you_mean(task, known)
            raise UserError(f"{where}: found {task!r}; expected sections of examples: {', '.join(known)}{hint}")


def missing(path: Path) -> UserError:
    """The error for an input that does not exist: one that a stage writes, or one that the user names."""
    if path.is_relative_to(paths.ARTIFACTS):
        return UserError(f"{path}: missing; run the stage that writes it (`dvc repro` runs what is needed, in order)")
    return UserError(f"{path}: missing; put it there, or name another file or folder in {PARAMS}")
