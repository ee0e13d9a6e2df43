"""A section of `params.yaml` becomes a frozen configuration."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from plm_core.config import UserError, did_you_mean, digest, from_dict
from plm_core.shared import paths
from plm_core.shared.params_file import PARAMS as PARAMS
from plm_core.shared.params_file import read as read

T = TypeVar("T")
MADE = (paths.MODELS, paths.FINETUNED, paths.TOKENIZERS)
"""Inputs that the pipeline has made from data, and that are not data themselves."""


def has_value(name: str, value: object) -> bool:
    """Whether this dotted section can be read and is ``value``."""
    try:
        return bool(read(name) == value)
    except UserError:
        return False


def section(name: str, cls: type[T]) -> T:
    """A dotted section as its dataclass; UserError names the dotted parameter that is wrong."""
    return from_dict(cls, read(name), name)


def without_parameter(name: str, other: str, cls: type[T]) -> T:
    """``section`` without its parameter ``other``, which belongs to the flow."""
    value = read(name)
    return from_dict(cls, {k: v for k, v in value.items() if k != other} if isinstance(value, dict) else value, name)


def section_names(section: str) -> list[str]:
    """The names of the sections below ``sources`` or ``examples``, sorted.

    Raises:
        UserError: there is none, or one cannot be the name of a file and of a stage.
    """
    sections = read(section)
    if not isinstance(sections, dict) or not sections:
        raise UserError(f"{section}: found {sections!r}; expected at least one section below it")
    for name in sections:
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
            raise UserError(
                f"{section}: found the name {name!r}; expected letters, digits, - and _ (a number in quotes)"
            )
    return sorted(sections)


def models() -> dict[str, str]:
    """The sections of ``pretrain`` that are trained, each with the section of ``tokenizers`` that it is trained with.

    Raises:
        UserError: the parameter is anything else, or names a tokenizer that has no section.
    """
    value = read("models")
    if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise UserError(f"models: found {value!r}; expected each model with its tokenizer, such as {{gpt: own}}")
    for model, tokenizer in value.items():
        if tokenizer not in (tokenizers := section_names("tokenizers")):
            hint = did_you_mean(tokenizer, tokenizers)
            raise UserError(
                f"models.{model}: found {tokenizer!r}; expected one of tokenizers: {', '.join(tokenizers)}{hint}"
            )
    return value


def tokenizer_of(model: str) -> str:
    """The tokenizer of a section of ``pretrain``; that of the first model if the section is not among ``models``."""
    tokenizers = models()
    if not tokenizers:
        raise UserError("models: names none; expected each model with its tokenizer, such as {gpt: own}")
    return tokenizers.get(model) or next(iter(tokenizers.values()))


def name_list(name: str) -> list[str]:
    """A dotted parameter that is a list of names; UserError for anything else."""
    value = read(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{name}: found {value!r}; expected a list of names")
    return value


def require_examples(where: str, tasks: Iterable[str]) -> None:
    """Raise UserError, which begins with ``where``, if one of the tasks is not a section of ``examples``."""
    sections = section_names("examples")
    for task in tasks:
        if task not in sections:
            hint = did_you_mean(task, sections)
            raise UserError(f"{where}: found {task!r}; expected sections of examples: {', '.join(sections)}{hint}")


def missing_input(path: Path) -> UserError:
    """The error for an input that does not exist: one that a stage writes, or one that the user names."""
    if path.is_relative_to(paths.ARTIFACTS):
        return UserError(f"{path}: missing; run the stage that writes it (`dvc repro` runs what is needed, in order)")
    return UserError(f"{path}: missing; put it there, or name another file or folder in {PARAMS}")


def labels(model: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """The tags of a run with these inputs (sha256 by path), for one of ``models`` unless that is empty.

    ``plm.data`` is a digest: if it is equal, the same data was read.
    """
    data = {path: of for path, of in inputs.items() if not any(map(Path(path).is_relative_to, MADE))}
    tags = {"plm.data": digest(data)[:12]} if data else {}
    tags |= {"plm.model": model} if model else {}
    with contextlib.suppress(UserError, KeyError, TypeError):  # a broken section is reported where it is used
        section = read(f"pretrain.{model}")
        tags |= {"plm.architecture": str(section["architecture"]), "plm.objective": str(section["objective"]["name"])}
    return tags
