"""Strict configuration: a plain dict becomes a frozen dataclass or one clear error. Used by every package.

Pydantic checks types and ranges; errors are reported in this project's words, with the parameter's dotted name.
``UserError`` is the project's one exception for what the user can fix: a parameter, a file, a folder.
"""

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from plm_core.shared.errors import UserError as UserError

T = TypeVar("T")
C = TypeVar("C", bound=type)

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""An int is accepted for a float; nothing else is converted."""
Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
PositiveShare = Annotated[float, Field(gt=0, le=1)]
"""A number above 0, at most 1."""
Probability = Annotated[float, Field(ge=0, lt=1)]
"""A number from 0, below 1, such as a dropout probability."""

EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section",
    "too_short": "at least {min_length} in the list",
    "string_too_short": "some text",
    "greater_than": "above {gt:,.12g}",
    "greater_than_equal": "at least {ge:,.12g}",
    "less_than": "below {lt:,.12g}",
    "less_than_equal": "at most {le:,.12g}",
}
"""Our wording of those pydantic messages that use JSON's terms; its other messages are kept."""

RENAMED = {"each": "per_paradigm"}
"""The parameters renamed since the previous release: the old name, and the new one."""


@typing.dataclass_transform(frozen_default=True)
def section(cls: C) -> C:
    """Make a class a section of the parameters: a frozen dataclass whose fields are validated on construction.

    ``__post_init__`` checks constraints between fields; its ValueError begins with the field's name.
    """
    return typing.cast(C, checked(cls, frozen=True, config=STRICT))


def from_dict(cls: type[T], data: object, where: str) -> T:
    """Build the ``section`` ``cls`` from ``data``, a mapping read from YAML or JSON.

    ``where`` is its dotted name and opens every message.

    Raises:
        UserError: an unknown or missing key, a wrong type, a value out of its range, or one that ``__post_init__``
            refuses. The first one is raised, with the others in ``beside``.
    """
    assert hasattr(cls, "__pydantic_config__"), f"{cls} is not a section, and would not be read strictly"
    try:
        # As JSON: YAML's lists become tuples, and its mappings dataclasses, if the types say so.
        return TypeAdapter(cls).validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "unexpected_keyword_argument")
        first, *others = [UserError(_refusal(cls, e, where)) for e in errors]
    # Not "from" pydantic's error: its references, hidden from the garbage collector, would keep all modules alive.
    first.beside = tuple(others)
    raise first


def from_json(cls: type[T], path: Path, expected: str = "JSON as this pipeline writes it") -> T:
    """``from_dict`` on the content of a JSON file.

    Raises:
        UserError: as ``from_dict``, or the file cannot be read as JSON; ``expected`` ends the message.
    """
    try:
        return from_dict(cls, json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}; expected {expected}") from error


def choose(table: Mapping[str, type[T]], key: str, data: object, where: str) -> T:
    """``from_dict`` for the section in ``table`` that the parameter ``key`` names; the other parameters are its fields.

    Raises:
        UserError: the name is not in the table, or as ``from_dict``.
    """
    given = dict(data) if isinstance(data, Mapping) else {}
    name = given.pop(key, None)
    if not isinstance(name, str) or name not in table:
        raise UserError(f"{where}.{key}: found {name!r}; expected one of {', '.join(table)}")
    return from_dict(table[name], given, where)


def join_names(names: Iterable[str], most: int = 8) -> str:
    """The names in one line, shortened to the first ``most``."""
    shown = list(names)
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: ``; did you mean 'x'?``, or nothing if none is similar."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def digest(*parts: object) -> str:
    """The sha256 (hex) of configurations and strings; equal content gives an equal digest in every process."""
    plain = [dataclasses.asdict(p) if dataclasses.is_dataclass(p) and not isinstance(p, type) else p for p in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def _refusal(cls: type, error: Any, where: str) -> str:
    """A pydantic error as a line that opens with the dotted name of the parameter."""
    place, kind, value = error["loc"], error["type"], error["input"]
    steps = (f"[{s}]" if isinstance(s, int) else f".{s}" if s.isprintable() else f".{s!r}" for s in place)
    name = where + "".join(steps)
    if kind == "value_error":
        return f"{name}.{error['ctx']['error']}"
    if kind == "unexpected_keyword_argument":
        names = _names(_at(cls, place[:-1]))
        if RENAMED.get(place[-1]) in names:
            return f"{name}: unknown parameter; its name is now {RENAMED[place[-1]]!r}"
        hint = did_you_mean(place[-1], names) or f"; expected one of {', '.join(names)}"
        return f"{name}: unknown parameter{hint}"
    if kind == "missing":
        return f"{name}: missing, and it has no default"
    if kind == "dataclass_type":
        expected = f"a section with the keys {', '.join(_names(_at(cls, place)))}"
    elif kind == "literal_error":
        expected = "one of " + error["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
    elif kind in EXPECTED:
        expected = EXPECTED[kind].format(**error.get("ctx", {}))
    else:
        expected = error["msg"].removeprefix("Input should be ")
    given = f"the text {value!r}" if isinstance(value, str) else repr(value)
    return f"{name}: found {given}; expected {expected}{_hint(kind, value)}"


def _at(kind: Any, place: Iterable[str | int]) -> Any:
    """The dataclass that describes the given place in the parameters."""
    for step in place:
        kind = typing.get_type_hints(kind)[str(step)] if dataclasses.is_dataclass(kind) else typing.get_args(kind)[-1]
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    return kind


def _names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _hint(kind: str, value: Any) -> str:
    """How to write the value in YAML, if it was misread. 1e-4 is text in YAML 1.1 and a number in YAML 1.2; only the
    spelling with a dot is a number in both. YAML 1.1 reads No, Off, Yes and On as false and true."""
    if kind == "string_type" and isinstance(value, bool | int | float):
        written = ("No", "Yes")[value] if isinstance(value, bool) else value
        return f" (in YAML, quote it: '{written}')"
    try:
        if kind == "int_type" and isinstance(value, str):
            return f" (in YAML write it as {int(value)}, without quotes)"
        if kind == "float_type" and isinstance(value, str):
            return f" (in YAML write it as {float(value)!r} with a decimal point, e.g. 1.0e-4, and without quotes)"
    except ValueError:
        pass
    return ""
