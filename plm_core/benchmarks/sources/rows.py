"""Examples from the rows of tables, or an error that says which row is wrong. Used by the other sources."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.table import Columns
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError, did_you_mean, listed
from plm_core.corpus.quarantine import Refused
from plm_core.corpus.records import SURROGATE, records

Content = Mapping[str, object] | Refused
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LONGEST = 100_000_000
"""The bytes of the longest row allowed."""


class Reader:
    """Makes the examples of a task; ids are unique within one reader."""

    def __init__(
        self, task: GlueTask, columns: Columns, codes: Mapping[str, int], droppable: Collection[str] = ()
    ) -> None:
        """``codes``: how the rows write each class. ``droppable``: reasons for which a row is left out and counted."""
        self.dropped = Counter[tuple[str, str]]()
        """How many rows of each part were left out, by reason."""
        self._task, self._columns, self._codes, self._droppable = task, columns, codes, droppable
        self._places: dict[str, str] = {}

    def read(self, rows: Iterable[tuple[str, Content]], part: str, subset: str = "") -> Iterator[Example]:
        """The examples of one part; each row comes with its place. Without an id column, the id is ``part-number``.

        Raises:
            UserError: a row is not an example, a column is missing, or an id occurs twice.
        """
        number = 0
        for place, content in rows:
            try:
                if isinstance(content, Refused):
                    raise content
                example = self._example(content, f"{part}-{number + 1}", subset)
            except Refused as refused:
                if refused.reason in self._droppable:
                    self.dropped[part, refused.reason] += 1
                    continue
                raise UserError(f"{place}: {refused.detail}") from None
            if before := self._places.get(example.id):
                raise UserError(f"{place}: the id {example.id!r} was used before, at {before}; expected unique ids")
            self._places[example.id] = place
            number += 1
            yield example

    def _example(self, row: Mapping[str, object], identity: str, subset: str) -> Example:
        columns = self._columns
        for name in (columns.a, columns.b, columns.label, columns.id, columns.group, *columns.choices):
            if name is not None and name not in row:
                raise Refused("missing_column", f"no column {name!r}; found {listed(row, 12)}{did_you_mean(name, row)}")
        if columns.id is not None:
            identity = _identity(row[columns.id], columns.id)
        a = text_of(row[columns.a], columns.a)
        b = None if columns.b is None else text_of(row[columns.b], columns.b)
        group = "" if columns.group is None else _identity(row[columns.group], columns.group)
        label = self._label(row[columns.label])
        return Example(identity, a, b, label, subset, choices=self._choices(row), group=group)

    def _choices(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The choices from one column each, or from the one column of JSON lines that holds them as a list."""
        names = self._columns.choices
        many = len(self._task.labels)
        if len(names) != 1:
            return tuple(text_of(row[name], name) for name in names)
        found = row[names[0]]
        if not isinstance(found, list) or len(found) != many:
            said = f"{len(found)} choices" if isinstance(found, list) else type(found).__name__
            raise Refused("wrong_choices", f"found {said} in the column {names[0]!r}; expected a list of {many} texts")
        return tuple(text_of(text, names[0]) for text in found)

    def _label(self, value: object) -> int | float:
        if self._task.kind == "regression":
            return _number(value, self._columns.label, self._task.span)
        written = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else None
        if written is None or written not in self._codes:
            names = [
                code if code == self._task.labels[i] else f"{code} ({self._task.labels[i]})"
                for code, i in self._codes.items()
            ]
            found = f"the label {value!r} in the column {self._columns.label!r}"
            raise Refused(
                "wrong_label", f"{found}; expected one of {listed(names, 12)}{did_you_mean(written or '', self._codes)}"
            )
        return self._codes[written]


def file_rows(file: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[str, Content]]:
    """The rows of a .tsv (nothing is quoted), .csv (quoted as in RFC 4180) or .jsonl file, each with its file:line."""
    for record in records(file, LONGEST, header):
        assert not isinstance(record.content, str)  # only text files have it
        yield f"{file}:{record.number}", record.content


def text_of(value: object, column: str) -> str:
    """The text without surrounding whitespace."""
    if not isinstance(value, str):
        raise Refused("no_text", f"found {type(value).__name__} in the column {column!r}; expected text")
    text = value.strip()
    if not text:
        raise Refused("empty_text", f"nothing in the column {column!r}; expected a text")
    if "\0" in text or SURROGATE.search(text):
        raise Refused("no_text", f"a NUL or a lone surrogate in the column {column!r}; expected text")
    return text


def _identity(value: object, column: str) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        raise Refused("missing_id", f"found {value!r} in the column {column!r}; expected an id, text or a whole number")
    return text_of(str(value), column)


def _number(value: object, column: str, span: tuple[float, ...] | None) -> float:
    least, most = span or (-math.inf, math.inf)
    written = str(value).strip() if isinstance(value, str | int | float) else ""
    number = float(written) if NUMBER.fullmatch(written) else math.nan
    if not (math.isfinite(number) and least <= number <= most):
        between = f" from {least:g} to {most:g}" if span else ""
        raise Refused("wrong_label", f"{value!r} in the column {column!r}; expected a number{between}")
    return number
