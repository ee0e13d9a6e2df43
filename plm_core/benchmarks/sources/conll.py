"""Sentences with a tag for each word, in the column files of CoNLL: a word, perhaps more, its tag; an empty line ends a
sentence. Used by the other sources.

Source: Tjong Kim Sang and De Meulder 2003, "Introduction to the CoNLL-2003 Shared Task", section 2.2.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import OUTSIDE, GlueTask
from plm_core.config import UserError, did_you_mean

DOCUMENT = "-DOCSTART-"
"""The word of a line that begins a document, which is not a sentence."""
COLUMNS = re.compile(r"[ \t]+")


def read(task: GlueTask, file: Path, part: str, iob1: bool = False) -> tuple[list[Example], Counter[str]]:
    """The sentences of a file, with ids ``part-number``; and how many lines begin a document.

    Tags are IOB2. With ``iob1`` they may be as in CoNLL-2003's own files, where ``I-X`` begins an entity unless one of
    the same type ends right before it: such a tag becomes ``B-X``, and is counted.

    Raises:
        UserError: a line is not a word with a tag of the task, has a different number of columns than the first, or
            begins an entity with ``I-X`` where this is not allowed.
    """
    ids = {tag: i for i, tag in enumerate(task.labels)}
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    for sentence in _sentences(file, counts):
        words = []
        tags = []
        before = OUTSIDE
        for place, word, tag in sentence:
            if tag not in ids:
                known = ", ".join(task.labels)
                raise UserError(f"{place}: the tag {tag!r}; expected one of {known}{did_you_mean(tag, ids)}")
            if tag.startswith("I-") and before[2:] != tag[2:]:
                if not iob1:
                    raise UserError(f"{place}: {tag} begins an entity; expected B-{tag[2:]} (tags are IOB2)")
                tag = f"B-{tag[2:]}"
                counts["tags_from_iob1"] += 1
            words.append(word)
            tags.append(ids[tag])
            before = tag
        group = f"{part}-{started}" if (started := counts["document_starts"]) else ""
        examples.append(Example(f"{part}-{len(examples) + 1}", " ".join(words), None, 0, tags=tuple(tags), group=group))
    return examples, counts


def _sentences(file: Path, counts: Counter[str]) -> Iterator[list[tuple[str, str, str]]]:
    """The place, word and tag of each line, by sentence."""
    sentence: list[tuple[str, str, str]] = []
    columns = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{file}:{number}"
            fields = _fields(place, line)
            if fields and columns and len(fields) != columns:
                raise UserError(f"{place}: {len(fields)} columns; expected {columns}, as in the lines before")
            columns = len(fields) or columns
            if fields and fields[0] != DOCUMENT:
                sentence.append((place, fields[0], fields[-1]))
                continue
            if sentence:
                yield sentence
            counts["document_starts"] += bool(fields)
            sentence = []
    if sentence:
        yield sentence


def _fields(place: str, line: bytes) -> list[str]:
    """The columns of a line; none for an empty one."""
    try:
        text = line.decode("utf-8").removeprefix("\ufeff").strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: byte 0x{line[error.start]:02x}; expected UTF-8 text") from None
    if not text:
        return []
    fields = COLUMNS.split(text)
    if len(fields) < 2 or "\0" in text:
        raise UserError(f"{place}: found {text!r}; expected a word and its tag, separated by a space or a tab")
    return fields
