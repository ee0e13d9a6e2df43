"""Decontamination: training text that holds evaluation examples is found by shared n-grams of words.

Used by the stage deduplicate. Brown et al. 2020, appendix C: 13-grams, of examples that are shorter the whole example
if it has at least 8 words. What is removed are the paragraphs that the shared n-grams touch, so that what stands
around them is kept. Examples are looked for some at a time, those of ``WORDS_AT_ONCE`` words: their index takes about
24 bytes of memory a word, and documents are read once for each such part.

Shapes: G n-grams of the examples.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from plm_core.config import BadInput
from plm_core.corpus.document import Document
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.quarantine import Refused
from plm_core.corpus.records import records
from plm_core.corpus.removal import Removal
from plm_core.corpus.shingles import CHARACTERS_AT_ONCE, Words, words
from plm_core.corpus.tables import RowWriter, row_writer
from plm_core.files import sha256_file

LONGEST = 100_000_000
"""Bytes of the longest record of an evaluation set."""
WORDS_AT_ONCE = 1 << 23
"""Words of examples that are looked for together."""


@dataclass(frozen=True)
class ExampleFile:
    """An evaluation set outside the corpus; the digest makes it a decision that DVC sees."""

    name: str
    """What the report calls it, such as ``sst-2``."""
    file: str
    """Text, JSON lines, CSV, TSV or Parquet; each text field of a record is looked for."""
    sha256: str
    """The file's digest."""


@dataclass(frozen=True)
class DecontaminateConfig:
    """Section ``decontaminate`` of the parameters."""

    held_out: bool = True
    """Training text against the validation and the test split, of which tasks are made; validation against test."""
    examples: list[ExampleFile] = field(default_factory=list)
    """Further evaluation sets, which every split is compared with."""
    ngram: int = 13
    """n, in words."""
    shortest: int = 8
    """Examples with fewer words are not looked for: they stand everywhere."""
    overlap: float = 0.5
    """Which share of an example's n-grams a document must hold to be contaminated; 0: a single one is enough."""

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.ngram:
            raise ValueError(f"shortest: {self.shortest}; expected between 1 and ngram ({self.ngram})")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap: {self.overlap}; expected between 0 and 1")


SCHEMA = pa.schema(
    [
        ("evaluation", pa.string()),
        ("example", pa.string()),
        ("document", pa.string()),
        ("overlap", pa.float64()),
        ("paragraphs", pa.list_(pa.int32())),
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Found:
    """An evaluation example that stands in a document."""

    evaluation: str
    """The name of the evaluation set."""
    example: str
    """Which example of it: the document and its paragraph, or the file's line and the field."""
    overlap: float
    """Which share of the example's n-grams the document holds."""
    paragraphs: list[int]
    """Which paragraphs of the document they touch, in order."""


@dataclass(frozen=True)
class Hit:
    """What was found, with the document that lost text by it; the report of contamination has these columns."""

    evaluation: str
    example: str
    document: str
    """The document's id."""
    overlap: float
    paragraphs: list[int]
    text: str
    """These paragraphs."""


def hit_writer(path: Path) -> AbstractContextManager[RowWriter[Hit]]:
    """Yield a writer whose hits become the Parquet file ``path`` when the block ends well."""
    return row_writer(path, SCHEMA, asdict)


class Examples:
    """The n-grams of evaluation examples, to be looked for in documents."""

    def __init__(self, config: DecontaminateConfig) -> None:
        self.too_short = 0
        """How many examples had too few words to be looked for."""
        self.words = 0
        """Of those that are looked for."""
        self._config = config
        self._names: list[tuple[str, str]] = []
        self._found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._tables: dict[int, _Table] | None = None
        self._sizes: list[int] = []

    def __len__(self) -> int:
        """How many examples are looked for."""
        return len(self._names)

    def add(self, evaluation: str, name: str, text: str) -> None:
        """Add an example of an evaluation set."""
        self._tables = None
        found = words([text])
        n = min(self._config.ngram, len(found.hashes))
        if n < self._config.shortest:
            self.too_short += 1
            return
        grams = np.unique(found.shingles(n).hashes)
        self._found.setdefault(n, []).append((grams, np.full(len(grams), len(self._names), dtype=np.int32)))
        self._sizes.append(len(grams))
        self._names.append((evaluation, name))
        self.words += len(found.hashes)

    def find(self, documents: Sequence[Sequence[str]]) -> list[list[Found]]:
        """The examples that stand in each document, which is given as its paragraphs."""
        flat = words([paragraph for document in documents for paragraph in document])
        last = np.cumsum([len(document) for document in documents])
        ends = np.concatenate((np.zeros(1, dtype=np.int64), flat.ends))[last]
        joined, starts = Words(flat.hashes, ends), np.concatenate((np.zeros(1, dtype=np.int64), flat.ends))[:-1]
        results: list[list[Found]] = [[] for _ in documents]
        for n, table in self._index().items():
            shingles = joined.shingles(n)
            shared, entry = table.matches(shingles.hashes)
            if not len(shared):
                continue
            place, examples = shingles.places[shared], table.examples
            document = np.searchsorted(ends, place, side="right")
            # A text that is repeated within the document counts once.
            hits = np.unique(np.stack((document, examples[entry], entry)), axis=1)
            pairs, found = np.unique(hits[:2], axis=1, return_counts=True)
            for (d, e), number in zip(pairs.T.tolist(), found.tolist(), strict=True):
                overlap = number / self._sizes[e]
                if overlap >= self._config.overlap:
                    places = place[(document == d) & (examples[entry] == e)]
                    results[d].append(self._found_in(e, overlap, places, n, starts, int(last[d - 1]) if d else 0))
        return results

    def _found_in(
        self, example: int, overlap: float, places: np.ndarray, n: int, starts: np.ndarray, first: int
    ) -> Found:
        """``starts``: the word with which each paragraph begins; ``first``: the document's first paragraph."""
        touched = np.searchsorted(starts, np.concatenate((places, places + n - 1)), side="right") - 1
        spanned = {p for low, high in touched.reshape(2, -1).T.tolist() for p in range(low, high + 1)}
        return Found(*self._names[example], overlap, sorted(p - first for p in spanned))

    def _index(self) -> dict[int, "_Table"]:
        """The n-grams for each n that an example has."""
        if self._tables is None:
            columns = {n: [np.concatenate(column) for column in zip(*self._found[n], strict=True)] for n in self._found}
            self._tables = {n: _Table(*columns[n]) for n in sorted(columns)}
        return self._tables


class _Table:
    """The n-grams of examples, for one n."""

    def __init__(self, grams: np.ndarray, examples: np.ndarray) -> None:
        """``grams`` ``[G]`` uint64, and the example that each is of."""
        order = np.argsort(grams, kind="stable")
        self.examples = examples[order]
        """``[G]``, in the order of entries."""
        self._grams = grams[order]
        # Almost no n-gram of a text is one of an example: most are told by their lowest bits, without a search.
        self._mask = np.uint64((1 << (4 * len(grams)).bit_length()) - 1)
        self._seen = np.zeros(int(self._mask) + 1, dtype=bool)
        self._seen[grams & self._mask] = True

    def matches(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the hashes are n-grams here, and which entries; several of both, where examples share one."""
        maybe = np.flatnonzero(self._seen[hashes & self._mask])
        first = np.searchsorted(self._grams, hashes[maybe], side="left")
        count = np.searchsorted(self._grams, hashes[maybe], side="right") - first
        nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return np.repeat(maybe, count), nth + np.repeat(first, count)


def in_parts(examples: Iterable[tuple[str, str, str]], config: DecontaminateConfig) -> Iterator[Examples]:
    """Yield examples, given as evaluation set, name and text, as many at a time as are looked for together."""
    part = Examples(config)
    for example in examples:
        if part.words >= WORDS_AT_ONCE:
            yield part
            part = Examples(config)
        part.add(*example)
    yield part


def read_examples(given: ExampleFile) -> Iterator[tuple[str, str, str]]:
    """Yield the evaluation set, the name and the text of every text field of its records.

    Raises:
        BadInput: the file is missing, not the one that ``sha256`` names, or a record of it cannot be read.
    """
    path = Path(given.file)
    if not path.is_file():
        raise BadInput(f"{path}: missing; expected the examples of {given.name} (decontaminate.examples)")
    if (found := sha256_file(path)) != given.sha256:
        raise BadInput(f"decontaminate.examples: {path} is {found}; expected {given.sha256}")
    for record in records(path, LONGEST):
        if isinstance(record.content, Refused):
            raise BadInput(f"{path}:{record.number}: {record.content}")
        fields = {"text": record.content} if isinstance(record.content, str) else record.content
        for name, value in fields.items():
            if isinstance(value, str):
                yield given.name, f"{path.name}:{record.number} {name}", value


def decontaminate(
    documents: Iterable[Document], examples: Examples
) -> Iterator[tuple[Document, list[Removal], list[Hit]]]:
    """Yield each document without the paragraphs that hold evaluation examples, those paragraphs, and the examples."""
    for group in _groups(documents):
        split = [paragraphs_of(document.text) for document in group]
        for document, paragraphs, found in zip(group, split, examples.find(split), strict=True):
            reasons: dict[int, str] = {}
            hits = []
            for one in found:
                text = BETWEEN.join(paragraphs[position] for position in one.paragraphs)
                hits.append(Hit(one.evaluation, one.example, document.id, one.overlap, one.paragraphs, text))
                for position in one.paragraphs:
                    reasons.setdefault(position, f"{one.evaluation} {one.example} (overlap {one.overlap:.2f})")
            removals = [
                Removal(document.id, position, document.source, "contaminated", reason, paragraphs[position])
                for position, reason in sorted(reasons.items())
            ]
            kept = BETWEEN.join(text for position, text in enumerate(paragraphs) if position not in reasons)
            yield replace(document, text=kept), removals, hits


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents some at a time: arrays pay from a few thousand words."""
    group: list[Document] = []
    for document in documents:
        group.append(document)
        if sum(len(each.text) for each in group) >= CHARACTERS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group
