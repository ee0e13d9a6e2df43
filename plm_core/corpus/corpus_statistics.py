"""Figures of a corpus for its card, computed part by part in a ``Pool``; UserError if a file is missing or damaged."""

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from plm_core.corpus.document import Piece, files_of, pieces_of, read_documents
from plm_core.corpus.normalize import paragraphs_of
from plm_core.corpus.part_pool import Pool
from plm_core.corpus.removals import Removal, read_removals

EXAMPLES = 3
"""How many examples of a rule are kept."""
EXCERPT = 280
"""The longest excerpt of an example, in characters."""
FOUND = "found.pickle"


@dataclass
class Sizes:
    """The amount of text, and the lengths of documents and paragraphs."""

    documents: int = 0
    paragraphs: int = 0
    words: int = 0
    """The number of words, separated by whitespace."""
    bytes: int = 0
    """UTF-8."""
    document_words: Counter[int] = field(default_factory=Counter)
    """The number of documents by length in words: up to this power of two, and more than half of it."""
    paragraph_words: Counter[int] = field(default_factory=Counter)
    """The same for paragraphs."""


def sizes(table: Path, pool: Pool) -> dict[str, Sizes]:
    """The sizes of a table by source, sorted by name."""
    by_source = defaultdict[str, list[Sizes]](list)
    for part in _found(pool.map(f"sizes-{table.stem}", sizes_part, pieces_of(table))):
        for source, some in part.items():
            by_source[source].append(some)
    return {source: sum_sizes(by_source[source]) for source in sorted(by_source)}


def sizes_part(piece: Piece, folder: Path) -> None:
    """Write the sizes of some row groups of a file by source."""

    def power(words: int) -> int:
        """The smallest power of two that is not below ``words``; 0 for none."""
        return 1 << (words - 1).bit_length() if words else 0

    by_source = defaultdict[str, Sizes](Sizes)
    for document in read_documents(*piece):
        some = by_source[document.source]
        lengths = [len(text.split()) for text in paragraphs_of(document.text)]
        some.documents += 1
        some.paragraphs += len(lengths)
        some.words += sum(lengths)
        some.bytes += len(document.text.encode())
        some.document_words[power(sum(lengths))] += 1
        some.paragraph_words.update(map(power, lengths))
    (folder / FOUND).write_bytes(pickle.dumps(by_source))


def sum_sizes(parts: Iterable[Sizes]) -> Sizes:
    """The sum of several sizes."""
    whole = Sizes()
    for part in parts:
        for measure in fields(Sizes):
            setattr(whole, measure.name, getattr(whole, measure.name) + getattr(part, measure.name))
    return whole


@dataclass
class Rule:
    """What one rule removed."""

    level: str
    """``documents`` or ``paragraphs``."""
    name: str
    by_source: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    examples: list[Removal] = field(default_factory=list)
    """The longest examples; among equally long ones, the first."""

    def add(self, by_source: Counter[str], size: int, examples: Iterable[Removal]) -> None:
        self.by_source += by_source
        self.bytes += size
        self.examples = sorted([*self.examples, *examples], key=lambda removal: -len(removal.text))[:EXAMPLES]


def rules(tables: Iterable[Path], pool: Pool) -> list[Rule]:
    """What each rule removed, in the order of their first removals."""
    totals: dict[tuple[str, str], Rule] = {}
    for part in _found(pool.map("rules", rules_part, [file for table in tables for file in files_of(table)])):
        for rule in part:
            whole = totals.setdefault((rule.level, rule.name), Rule(rule.level, rule.name))
            whole.add(rule.by_source, rule.bytes, rule.examples)
    return list(totals.values())


def rules_part(file: Path, folder: Path) -> None:
    """Write what each rule removed, for a file of removals."""
    counted: dict[tuple[str, str], Rule] = {}
    for removal in read_removals(file):
        rule = counted.setdefault((removal.level, removal.rule), Rule(removal.level, removal.rule))
        rule.add(Counter([removal.source]), len(removal.text.encode()), [removal])
    (folder / FOUND).write_bytes(pickle.dumps(list(counted.values())))


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…"


def texts_of(names: Iterable[str], table: Path, pool: Pool) -> dict[str, str]:
    """The texts with these names, which are as in removals: ``document`` or ``document#paragraph``."""
    wanted = frozenset(names)
    if not wanted:
        return {}
    results = pool.map("texts", texts_part, [(wanted, piece) for piece in pieces_of(table)])
    return {name: text for part in _found(results) for name, text in part.items()}


def texts_part(work: tuple[Set[str], Piece], folder: Path) -> None:
    """Write the named texts in some row groups of a file."""
    wanted, piece = work
    holders = wanted | {name.rpartition("#")[0] for name in wanted}
    texts = {}
    for document in read_documents(*piece):
        if document.id in holders:
            texts[document.id] = document.text
            texts |= {f"{document.id}#{place}": text for place, text in enumerate(paragraphs_of(document.text))}
    (folder / FOUND).write_bytes(pickle.dumps({name: text for name, text in texts.items() if name in wanted}))


def _found(results: Iterable[Path]) -> Iterator[Any]:
    return (pickle.loads((result / FOUND).read_bytes()) for result in results)
