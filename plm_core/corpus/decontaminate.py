"""Decontamination: find training text that contains evaluation examples by shared n-grams of words.

Used by the stage deduplicate. Brown et al. 2020, appendix C: 13-grams; of a shorter example the whole example, if it
has at least 8 words. Only the paragraphs that the shared n-grams touch are removed. An example of more than ``PART``
words is searched for in parts of that length, because a training document may contain one page of it. Examples are
searched for in groups of ``WORDS_AT_ONCE`` words, and documents are read once per group. An index is a file of 23 bytes
per word, which all processes of a machine share in memory; building it takes about 90 bytes per word.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import joblib
import numpy as np
import pyarrow as pa

from plm_core.config import Share, section
from plm_core.corpus.document import Document
from plm_core.corpus.example_index import Found, Index, Table
from plm_core.corpus.examples import ExampleFile
from plm_core.corpus.normalize import BETWEEN, normalize, paragraphs_of
from plm_core.corpus.removal import Removal, removal_log
from plm_core.corpus.shingles import Words, batches, words
from plm_core.corpus.sides import SidePart
from plm_core.corpus.tables import RowWriter, row_writer

PART = 40
"""The words of a part of an example; the last part ends with the example, so it overlaps the one before."""
WORDS_AT_ONCE = 1 << 24
"""The words of examples that are searched for together."""


@section
class DecontaminateConfig:
    """Section ``decontaminate`` of the parameters."""

    held_out: bool = True
    """Compare training text with the validation and test splits, which give tasks, and validation with test."""
    examples: list[ExampleFile] = field(default_factory=list)
    """Further evaluation sets to compare every split with."""
    ngram: int = 13
    """The length n of an n-gram, in words."""
    shortest: int = 8
    """Examples with fewer words are not searched for, because they occur everywhere."""
    overlap: Share = 0.5
    """The share of the n-grams of an example, or of a part of it, that a document must contain to be contaminated.

    0: a single one is enough.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.ngram <= PART:
            raise ValueError(
                f"shortest: {self.shortest}, ngram: {self.ngram}; expected 1 <= shortest <= ngram <= {PART}"
            )


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
class Hit(Found):
    """A match, with the document that lost text because of it: the columns of the contamination report."""

    document: str
    """The document's id."""
    text: str
    """The paragraphs."""


def hit_writer(path: Path) -> AbstractContextManager[RowWriter[Hit]]:
    """Yield a writer whose hits become the Parquet file ``path`` when the block succeeds."""
    return row_writer(path, SCHEMA, asdict)


HITS = "hits.parquet"
"""The file of hits in a part, in addition to its removals."""


class Examples:
    """Evaluation examples to be indexed."""

    def __init__(self, config: DecontaminateConfig) -> None:
        self.too_short = 0
        """The number of examples with too few words to be searched for."""
        self.words = 0
        """The words of the examples that are searched for."""
        self._config = config
        self._names: list[str] = []
        self._known: set[bytes] = set()
        self._found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._sizes: list[int] = []
        self._example: list[int] = []

    def __len__(self) -> int:
        """The number of examples that are searched for."""
        return len(self._names)

    def add(self, examples: Sequence[tuple[str, str, str]]) -> None:
        """Add examples, each as (evaluation set, name in it, text)."""
        found = words([normalize(text) for _, _, text in examples])
        parts: list[np.ndarray] = []
        example_of = []
        begins = np.concatenate((np.zeros(1, dtype=np.int64), found.ends[:-1]))
        for (evaluation, name, _), begin, end in zip(examples, begins.tolist(), found.ends.tolist(), strict=False):
            example = found.hashes[begin:end]
            if len(example) < self._config.shortest:
                self.too_short += 1
                continue
            for start in range(0, len(example), PART):
                parts.append(example[max(0, min(start, len(example) - PART)) :][:PART])
                example_of.append(len(self._names))
            self._names.append(f"{evaluation}\0{name}")
            self.words += len(example)
        if parts:
            self._add_parts(parts, example_of)

    def _add_parts(self, parts: Sequence[np.ndarray], example_of: Sequence[int]) -> None:
        """Add parts of examples as hashes of words. Of those with the same words, only the first counts."""
        n = self._config.ngram
        shingles = Words(np.concatenate(parts), np.cumsum([len(part) for part in parts])).shingles(n)
        for part, example, found in zip(parts, example_of, np.split(shingles.hashes, shingles.ends[:-1]), strict=True):
            grams = np.unique(found)
            if (key := sha256(grams.tobytes()).digest()) not in self._known:
                self._known.add(key)
                entries = np.full(len(grams), len(self._sizes), dtype=np.int32)
                self._found.setdefault(min(len(part), n), []).append((grams, entries))
                self._sizes.append(len(grams))
                self._example.append(example)

    def index(self) -> Index:
        """Build the index to search documents for the examples."""
        columns = {n: [np.concatenate(column) for column in zip(*self._found[n], strict=True)] for n in self._found}
        names = [name.encode() for name in self._names]
        return Index(
            self._config.overlap,
            {n: Table(*columns[n]) for n in sorted(columns)},
            np.array(self._sizes, dtype=np.int32),
            np.array(self._example, dtype=np.int64),
            np.frombuffer(b"".join(names), dtype=np.uint8),
            np.cumsum([0, *map(len, names)]),
        )


def in_parts(examples: Iterable[tuple[str, str, str]], config: DecontaminateConfig) -> Iterator[Examples]:
    """Yield groups of examples that are searched for together, from (evaluation set, name, text)."""
    part = Examples(config)
    for group in batches(examples, lambda example: example[2]):
        if part.words >= WORDS_AT_ONCE:
            yield part
            part = Examples(config)
        part.add(group)
    yield part


def write_index(examples: Examples, file: Path) -> None:
    """Write the index of the examples, for ``decontaminate_part``."""
    joblib.dump(examples.index(), file)


def decontaminate_part(work: tuple[SidePart, Path], folder: Path) -> None:
    """Write the paragraphs of a side that hold examples of an index, the hits, and the counts of what is left."""
    part, index = work
    with removal_log(folder) as log, hit_writer(folder / HITS) as hits:
        for document, removals, found in decontaminate(part.documents(), _opened(index)):
            for hit in found:
                hits.write(hit)
            log.remove(document, removals)
            if document.text:
                log.keep(document, part.side)


@functools.lru_cache(maxsize=1)
def _opened(file: Path) -> Index:
    index: Index = joblib.load(file, mmap_mode="r")
    return index


def decontaminate(documents: Iterable[Document], index: Index) -> Iterator[tuple[Document, list[Removal], list[Hit]]]:
    """Yield each document without the paragraphs that contain examples, with those paragraphs and the examples."""
    for group in batches(documents, lambda document: document.text):
        split = [paragraphs_of(document.text) for document in group]
        for document, paragraphs, found in zip(group, split, index.find(split), strict=True):
            reasons: dict[int, str] = {}
            hits = []
            for one in found:
                text = BETWEEN.join(paragraphs[position] for position in one.paragraphs)
                hits.append(Hit(**vars(one), document=document.id, text=text))
                for position in one.paragraphs:
                    reasons.setdefault(position, f"{one.evaluation} {one.example} (overlap {one.overlap:.2f})")
            removals = [
                Removal(document.id, position, document.source, "contaminated", reason, paragraphs[position])
                for position, reason in sorted(reasons.items())
            ]
            kept = BETWEEN.join(text for position, text in enumerate(paragraphs) if position not in reasons)
            yield replace(document, text=kept), removals, hits
