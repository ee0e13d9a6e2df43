"""An example of a GLUE-like task, and its readers: of tables, lines of two files, CoNLL's columns and SQuAD's JSON; an
error names the row.

Sources: Tjong Kim Sang and De Meulder 2003, "Introduction to the CoNLL-2003 Shared Task", section 2.2; Rajpurkar et al.
2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"; Rajpurkar et al. 2018, "Know What You Don't Know:
Unanswerable Questions for SQuAD".
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from plm_core.config import UserError, did_you_mean, join_names
from plm_core.corpus.records import SURROGATE, records
from plm_core.corpus.removals import Refused
from plm_core.shared.files import sha256_text

T = TypeVar("T")
SPLITS = ("train", "valid", "test")
TABLES = (".tsv", ".csv", ".jsonl")
GZIPPED = ".jsonl.gz"
LONGEST = 100_000_000
"""The bytes of the longest row allowed."""
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
DOCUMENT = "-DOCSTART-"
"""The word of a line of CoNLL that begins a document, which is not a sentence."""
OUTSIDE = "O"
"""The tag of a word outside entities."""


class Answer(NamedTuple):
    """A right answer to a question, or a reference: a right translation or summary."""

    text: str
    """The answer as written in the text."""
    start: int
    """The character of the text at which it begins, from 0; 0 for a reference."""


@dataclass(frozen=True)
class Example:
    """One or two texts and the right answer."""

    id: str
    """Unique within the task."""
    a: str
    """The text, or the first of the pair; the words of a sentence, joined by spaces; a question."""
    b: str | None
    """The second of the pair, or the text that holds the answer; None for a task of one text. If one of several texts
    is chosen, what precedes each of them, such as the question."""
    label: int | float
    """The id of the class or right choice; the number, for a regression; 0 if there are ``tags`` or ``answers``."""
    subset: str = ""
    """Which part of a test set it belongs to, if there are several: ``matched``, ``mismatched``."""
    tags: tuple[int, ...] = ()
    """The id of the tag of each word."""
    answers: tuple[Answer, ...] = ()
    """The right answers in ``b``, none if the question has none; or the references, at least one."""
    choices: tuple[str, ...] = ()
    """The texts to choose from."""
    group: str = ""
    """What it has in common with others of its split, such as the document that it was made from; "" if nothing is
    known."""

    @property
    def words(self) -> list[str]:
        """The tagged words, none of which contains a space."""
        return self.a.split(" ")

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that a model reads."""
        return (self.a, *(() if self.b is None else (self.b,)), *self.choices)

    @property
    def sha256(self) -> str:
        """The digest of the texts, which shows that two evaluations saw the same example."""
        return sha256_text("\x1f".join(self.texts))


def file_of(folder: Path, split: str) -> Path:
    """The file with the examples of a split."""
    return folder / f"{split}.jsonl"


def sample(examples: Iterable[Example], most: int | None) -> list[Example]:
    """At most ``most`` examples (None: all): those with the smallest hashes of ids, so that new ones displace few."""
    return sorted(examples, key=lambda example: sha256_text(example.id))[:most]


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read."""

    a: str
    b: str | None
    label: str
    id: str | None = None
    """A unique id; None: the part and the number of the row."""
    choices: tuple[str, ...] = ()
    """The texts to choose from, one column each; or the one column with a list of them."""
    group: str | None = None
    """What several examples have in common, such as their document; None: those with a text in common are a group."""


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, byte-identical on every machine; ValueError for a number that is not finite."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def read_lines(path: Path, stage: str, make: Callable[[Any, int], T], expected: str) -> list[T]:
    """What ``make`` returns for each line of a file that ``stage`` wrote, and its number, in order.

    Raises:
        UserError: the file is missing, or ``make`` refuses a line; the message names it, and ends with ``expected``.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro {stage}`)")
    objects = []
    with path.open("rb") as file:  # a line ends at \n alone: a text may contain what other readers take for its end
        for number, line in enumerate(file, start=1):
            try:
                objects.append(make(json.loads(line.decode("utf-8")), number))
            except (ValueError, KeyError, TypeError) as error:
                reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                raise UserError(f"{path}:{number}: {reason}; expected {expected}") from error
    return objects


class FileLayout(NamedTuple):
    """How the files of a task are written."""

    columns: Columns | None
    """None if they are not tables."""
    codes: Mapping[str, int]
    """The ids of the classes, by how the rows of tables write them."""
    droppable: Collection[str] = ()
    """The reasons for which a row is left out and counted."""
    iob1: bool = False
    """Whether tags may be IOB1, as in CoNLL-2003's own files."""


class Reader:
    """Makes the examples of one task from its files; ids are unique within one reader."""

    def __init__(self) -> None:
        self.dropped = Counter[tuple[str, str]]()
        """How many rows of each part were left out, by reason."""
        self.counts = Counter[str]()
        """What else was counted, as ``<part>_<name>``."""
        self._places: dict[str, str] = {}

    def open(self, file: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
        """The place and the content of each row, sentence or question of a file."""
        raise NotImplementedError

    def read(self, rows: Iterable[tuple[str, Any]], part: str, subset: str = "") -> Iterator[Example]:
        """The examples of one part, such as a split, from what ``open`` yields.

        Raises:
            UserError: a row is not an example, or an id occurs twice.
        """
        raise NotImplementedError

    def _claim(self, name: str, place: str) -> None:
        if before := self._places.get(name):
            raise UserError(f"{place}: the id {name!r} was used before, at {before}; expected unique ids")
        self._places[name] = place


class TableReader(Reader):
    """Rows of a table or of the hub. Without an id column, the id of an example is ``part-number``."""

    def __init__(self, layout: FileLayout, label: Callable[[object, str], int | float], choices: int = 0) -> None:
        """``label`` reads a value of a column; ``choices`` is how many texts there are to choose from."""
        super().__init__()
        assert layout.columns is not None
        self._columns = layout.columns
        self._droppable = layout.droppable
        self._label = label
        self._choices = choices

    def open(self, file: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
        """The rows of a .tsv (nothing is quoted), .csv (quoted as in RFC 4180) or .jsonl file."""
        return file_rows(file, header)

    def read(self, rows: Iterable[tuple[str, Any]], part: str, subset: str = "") -> Iterator[Example]:
        """As ``Reader.read``."""
        columns = self._columns
        number = 0
        for place, row in rows:
            try:
                if isinstance(row, Refused):
                    raise row
                for name in (columns.a, columns.b, columns.label, columns.id, columns.group, *columns.choices):
                    if name is not None and name not in row:
                        problem = f"no column {name!r}; found {join_names(row, 12)}{did_you_mean(name, row)}"
                        raise Refused("missing_column", problem)
                identity = f"{part}-{number + 1}" if columns.id is None else _identity(row[columns.id], columns.id)
                group = "" if columns.group is None else _identity(row[columns.group], columns.group)
                example = Example(identity, subset=subset, group=group, **self._fields(row))
            except Refused as refused:
                if refused.reason in self._droppable:
                    self.dropped[part, refused.reason] += 1
                    continue
                raise UserError(f"{place}: {refused.detail}") from None
            self._claim(example.id, place)
            number += 1
            yield example

    def _fields(self, row: Mapping[str, object]) -> dict[str, Any]:
        """The texts and the right answer of a row; Refused if it has none."""
        columns = self._columns
        b = None if columns.b is None else text_of(row[columns.b], columns.b)
        label = self._label(row[columns.label], columns.label)
        return {"a": text_of(row[columns.a], columns.a), "b": b, "label": label, "choices": self._texts(row)}

    def _texts(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The choices from one column each, or from the one column of JSON lines that holds them as a list."""
        names = self._columns.choices
        if len(names) != 1:
            return tuple(text_of(row[name], name) for name in names)
        texts = row[names[0]]
        if not isinstance(texts, list) or len(texts) != self._choices:
            given = f"{len(texts)} choices" if isinstance(texts, list) else type(texts).__name__
            expected = f"a list of {self._choices} texts"
            raise Refused("wrong_choices", f"found {given} in the column {names[0]!r}; expected {expected}")
        return tuple(text_of(text, names[0]) for text in texts)


class ReferenceReader(TableReader):
    """Texts and their references: of tables, or of two files whose lines belong together, as those of Moses do.

    In JSON lines the text may be a list of sentences, and the label a list of references.
    """

    def __init__(self, layout: FileLayout) -> None:
        super().__init__(layout, lambda *_: 0)

    def open(self, file: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
        """As ``TableReader.open``. Any other file has a text per line; of its reference, in the file whose name ends
        with the label's column instead of the text's.

        Raises:
            UserError: a line is empty or not UTF-8, or the other file is missing or has another number of lines.
        """
        source, target = self._columns.a, self._columns.label
        if file.name.endswith((*TABLES, GZIPPED)):
            yield from file_rows(file, header)
            return
        other = file.with_name(file.name.removesuffix(source) + target)
        if not other.is_file():
            raise UserError(f"{other}: missing; expected a line in it for each of {file.name}")
        for number, texts in enumerate(zip_longest(_lines(file), _lines(other)), start=1):
            if None in texts:
                longer, shorter = (file, other) if texts[1] is None else (other, file)
                raise UserError(f"{longer}:{number}: {shorter.name} ends before this line; expected as many lines")
            yield f"{file}:{number}", dict(zip((source, target), texts, strict=True))

    def _fields(self, row: Mapping[str, object]) -> dict[str, Any]:
        text, label = row[self._columns.a], row[self._columns.label]
        if isinstance(text, list):
            text = " ".join(s if str(s).isspace() else text_of(s, self._columns.a) for s in text if s != "")
        texts = label if isinstance(label, list) else [label]
        if not texts:
            raise Refused("no_text", f"an empty list in the column {self._columns.label!r}; expected at least one text")
        references = tuple(Answer(text_of(reference, self._columns.label), 0) for reference in texts)
        return {"a": text_of(text, self._columns.a), "b": None, "label": 0, "answers": references}


def _lines(file: Path) -> Iterator[str]:
    """The texts of a file with one a line; UserError for a line that has none."""
    with file.open("rb") as lines:  # a line ends at \n alone, in both files
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode("utf-8").removeprefix("\ufeff").strip()
            except UnicodeDecodeError as error:
                raise UserError(f"{file}:{number}: byte 0x{line[error.start]:02x}; expected UTF-8 text") from None
            if not text:
                raise UserError(f"{file}:{number}: an empty line; expected a text on both sides")
            yield text


def file_rows(
    file: Path, header: tuple[str, ...] | None = None
) -> Iterator[tuple[str, Mapping[str, object] | Refused]]:
    """The rows of a .tsv (nothing is quoted), .csv (quoted as in RFC 4180) or .jsonl file, each with its file:line; one
    that cannot be read is a ``Refused``."""
    for record in records(file, LONGEST, header):
        assert not isinstance(record.content, str)  # only text files have it
        yield f"{file}:{record.number}", record.content


def text_of(value: object, column: str) -> str:
    """The text without surrounding whitespace; Refused if there is none."""
    if not isinstance(value, str):
        raise Refused("no_text", f"found {type(value).__name__} in the column {column!r}; expected text")
    text = value.strip()
    if not text:
        raise Refused("empty_text", f"nothing in the column {column!r}; expected a text")
    if "\0" in text or SURROGATE.search(text):
        raise Refused("no_text", f"a NUL or a lone surrogate in the column {column!r}; expected text")
    return text


def class_of(value: object, column: str, codes: Mapping[str, int], labels: Sequence[str]) -> int:
    """The id of the class that a row writes as ``value``, by ``codes``; Refused if none is written so."""
    written = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else None
    if written is None or written not in codes:
        names = [code if code == labels[i] else f"{code} ({labels[i]})" for code, i in codes.items()]
        expected = f"one of {join_names(names, 12)}{did_you_mean(written or '', codes)}"
        raise Refused("wrong_label", f"the label {value!r} in the column {column!r}; expected {expected}")
    return codes[written]


def number_of(value: object, column: str, span: tuple[float, ...] | None) -> float:
    """A finite number within the span; Refused for anything else."""
    least, most = span or (-math.inf, math.inf)
    written = str(value).strip() if isinstance(value, str | int | float) else ""
    number = float(written) if NUMBER.fullmatch(written) else math.nan
    if not (math.isfinite(number) and least <= number <= most):
        between = f" from {least:g} to {most:g}" if span else ""
        raise Refused("wrong_label", f"{value!r} in the column {column!r}; expected a number{between}")
    return number


def _identity(value: object, column: str) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        raise Refused("missing_id", f"found {value!r} in the column {column!r}; expected an id, text or a whole number")
    return text_of(str(value), column)


class ConllReader(Reader):
    """Sentences in columns: a word, perhaps more, its tag; an empty line ends a sentence. Ids are ``part-number``."""

    def __init__(self, labels: Sequence[str], iob1: bool = False) -> None:
        """Tags are IOB2, as ``labels`` are. With ``iob1`` they may be as in CoNLL-2003's own files, where ``I-X``
        begins an entity unless one of the same type ends right before it: such a tag becomes ``B-X``, and is counted.
        """
        super().__init__()
        self._ids = {tag: i for i, tag in enumerate(labels)}
        self._iob1 = iob1

    def open(self, file: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
        """The columns of each line, none if it is empty.

        Raises:
            UserError: a line is not UTF-8, has only one column, or has a different number of columns from the first.
        """
        columns = 0
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                place = f"{file}:{number}"
                try:
                    text = line.decode("utf-8").removeprefix("\ufeff").strip(" \t\r\n")
                except UnicodeDecodeError as error:
                    raise UserError(f"{place}: byte 0x{line[error.start]:02x}; expected UTF-8 text") from None
                fields = re.split(r"[ \t]+", text) if text else []
                if text and (len(fields) < 2 or "\0" in text):
                    raise UserError(
                        f"{place}: found {text!r}; expected a word and its tag, separated by a space or a tab"
                    )
                if fields and columns and len(fields) != columns:
                    raise UserError(f"{place}: {len(fields)} columns; expected {columns}, as in the lines before")
                columns = len(fields) or columns
                yield place, fields
        yield "", []

    def read(self, rows: Iterable[tuple[str, Any]], part: str, subset: str = "") -> Iterator[Example]:
        """As ``Reader.read``; the group is the document, if lines begin documents."""
        number = 0
        words: list[str] = []
        tags: list[int] = []
        before = OUTSIDE
        documents = f"{part}_document_starts"
        for place, fields in rows:
            if fields and fields[0] != DOCUMENT:
                tag = fields[-1]
                if tag not in self._ids:
                    expected = f"one of {', '.join(self._ids)}{did_you_mean(tag, self._ids)}"
                    raise UserError(f"{place}: the tag {tag!r}; expected {expected}")
                if tag.startswith("I-") and before[2:] != tag[2:]:
                    if not self._iob1:
                        raise UserError(f"{place}: {tag} begins an entity; expected B-{tag[2:]} (tags are IOB2)")
                    tag = f"B-{tag[2:]}"
                    self.counts[f"{part}_tags_from_iob1"] += 1
                words.append(fields[0])
                tags.append(self._ids[tag])
                before = tag
                continue
            if words:
                number += 1
                group = f"{part}-{started}" if (started := self.counts[documents]) else ""
                yield Example(f"{part}-{number}", " ".join(words), None, 0, subset, tags=tuple(tags), group=group)
            if place:
                self.counts[documents] += bool(fields)
            words, tags = [], []
            before = OUTSIDE


class SquadReader(Reader):
    """Questions about texts in the JSON layout of SQuAD 1.1 and 2.0: ``data``, ``paragraphs``, ``qas``, ``answers``."""

    def __init__(self, unanswerable: bool) -> None:
        """``unanswerable``: whether a question may have no answer."""
        super().__init__()
        self._unanswerable = unanswerable

    def open(self, file: Path, header: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
        """The place of each question; its group, text and fields. The group is the document, by its place in the file;
        if the file has only one, it is the text.

        Raises:
            UserError: the file is not JSON of this layout.
        """
        try:
            content = json.loads(file.read_bytes().decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}: {error}; expected JSON in SQuAD's layout") from error
        documents = list(_items(content, "data", f"{file}"))
        for above, document in documents:
            for place, paragraph in _items(document, "paragraphs", above):
                context = _text(paragraph, "context", place)
                for inner, question in _items(paragraph, "qas", place):
                    group = (above if len(documents) > 1 else place).removeprefix(f"{file.parent}/")
                    yield inner, (group, context, question)

    def read(self, rows: Iterable[tuple[str, Any]], part: str, subset: str = "") -> Iterator[Example]:
        """As ``Reader.read``; every answer must be at its ``answer_start``."""
        for place, (group, context, question) in rows:
            name = _text(question, "id", place)
            asked_question = _text(question, "question", place).strip()
            answers = []
            for inner, answer in [] if question.get("is_impossible") is True else _items(question, "answers", place):
                text = _text(answer, "text", inner)
                start = answer.get("answer_start")
                if type(start) is not int or start < 0:
                    expected = "a character of the context, from 0"
                    raise UserError(f"{inner}.answer_start: found {start!r}; expected {expected}")
                if (given := context[start : start + len(text)]) != text:
                    raise UserError(f"{inner}: at answer_start {start}: found {given!r}; expected the answer {text!r}")
                answers.append(Answer(text, start))
            if not answers and not self._unanswerable:
                raise UserError(
                    f"{place}: no answer to {name!r}; expected one, or in the description of a task of your own "
                    "`unanswerable: true`"
                )
            self._claim(name, place)
            yield Example(name, asked_question, context, 0, subset, answers=tuple(answers), group=group)


def _items(content: Any, name: str, place: str) -> Iterator[tuple[str, Any]]:
    items = content.get(name) if isinstance(content, dict) else None
    if not isinstance(items, list):
        raise UserError(f"{place}: no list {name!r}; expected the layout of SQuAD: data, paragraphs, qas, answers")
    yield from ((f"{place}{':' if name == 'data' else '.'}{name}[{i}]", item) for i, item in enumerate(items))


def _text(content: Any, name: str, place: str) -> str:
    text = content.get(name) if isinstance(content, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{place}.{name}: found {text!r}; expected a text")
    if "\0" in text or SURROGATE.search(text):
        raise UserError(f"{place}.{name}: a NUL or a lone surrogate; expected text")
    return text
