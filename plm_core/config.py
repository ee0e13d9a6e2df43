"""Strict configuration: a plain dict becomes a frozen dataclass or one clear error. Used by every room.

``UserError`` is the project's one exception for what the user can mend: a parameter, a file, a folder.
"""

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class UserError(Exception):
    """Something that the user gave cannot be used; the message names the place and what was expected."""

    beside: tuple["UserError", ...] = ()
    """What else was found in the same section."""

    def lines(self) -> list[str]:
        """This message and those beside it, one line each."""
        return [str(self), *(line for other in self.beside for line in other.lines())]


def from_dict(cls: type[T], data: object, where: str) -> T:
    """Build the dataclass ``cls`` from ``data``, a mapping read from YAML or JSON.

    ``where`` is the dotted name of the section and opens every message. Nested dataclasses, ``Literal``,
    ``X | None``, ``list``, ``tuple[X, ...]`` and ``dict[str, X]`` are understood. An int is accepted for a float,
    nothing else is converted.

    Raises:
        UserError: an unknown or missing key, a wrong type, or a value that ``cls.__post_init__`` refuses; the first of
            them, with the others ``beside`` it.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: found {_show(data)}; expected a section with the keys {', '.join(_names(cls))}")
    refused = []
    for key in data:
        if key not in _names(cls):
            hint = did_you_mean(str(key), _names(cls)) or f"; expected one of {', '.join(_names(cls))}"
            refused.append(UserError(f"{where}.{key}: unknown parameter{hint}"))
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in data:
            try:
                values[field.name] = _convert(hints[field.name], data[field.name], f"{where}.{field.name}")
            except UserError as error:
                refused.append(error)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            refused.append(UserError(f"{where}.{field.name}: missing; expected {_describe(hints[field.name])}"))
    if refused:
        refused[0].beside += tuple(refused[1:])
        raise refused[0]
    try:
        return cls(**values)
    except ValueError as error:
        raise UserError(f"{where}.{error}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: ``; did you mean 'x'?``, or nothing where none is like it."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def digest(*parts: object) -> str:
    """The sha256 (hex) of configurations and strings; equal content gives an equal digest in every process."""
    plain = [dataclasses.asdict(p) if dataclasses.is_dataclass(p) and not isinstance(p, type) else p for p in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def _names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if dataclasses.is_dataclass(kind):
        return from_dict(typing.cast(type, kind), value, where)
    if origin is typing.Literal and value in args and type(value) in {type(a) for a in args}:
        return value
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return origin(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {str(k): _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if kind is float and type(value) in (int, float):
        if not math.isfinite(value):
            raise UserError(f"{where}: found {value}; expected a finite number")
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise UserError(f"{where}: found {_show(value)}; expected {_describe(kind)}{_hint(kind, value)}")


def _hint(kind: Any, value: Any) -> str:
    """YAML 1.1 reads 1e-4 as text, YAML 1.2 as a number: only the spelling with a dot means one thing everywhere."""
    if kind in (int, float) and isinstance(value, str):
        try:
            if kind is int:
                return f" (in YAML write it as {int(value)}, without quotes)"
            return f" (in YAML write it as {float(value)!r} with a decimal point, e.g. 1.0e-4, and without quotes)"
        except ValueError:
            return ""
    return ""


def _show(value: object) -> str:
    return f"the text {value!r}" if isinstance(value, str) else f"{value!r}"


def _describe(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(a) for a in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if a is type(None) else _describe(a) for a in args)
    if origin in (list, tuple):
        return f"a list, each item {_describe(args[0])}"
    if origin is dict or dataclasses.is_dataclass(kind):
        return "a section"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, str(kind))
