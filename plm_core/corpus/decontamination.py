"""Decontamination: find training text that contains evaluation examples by shared n-grams of words.

Used by the stage deduplicate. Brown et al. 2020, appendix C: 13-grams; a shorter example is searched for as a whole, if
it has at least 8 words. Only the paragraphs that the shared n-grams touch are removed. An example of more than ``PART``
words is searched for in parts of that length, because a training document may contain only a page of it. Examples are
searched for in groups of ``WORDS_AT_ONCE`` words, and documents are read once per group. An index is a file of 23 bytes
per word, which all processes of a machine share in memory; building it takes about 90 bytes per word.

Shapes: G n-grams of the examples, P parts of examples, E examples.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import joblib
import numpy as np
import pyarrow as pa

from plm_core.config import Share, UserError, section
from plm_core.corpus.deduplication import SidePart
from plm_core.corpus.document import Document, row_writer
from plm_core.corpus.normalize import BETWEEN, normalize, paragraphs_of
from plm_core.corpus.records import records
from plm_core.corpus.removals import Refused, Removal, removal_log
from plm_core.corpus.shingles import Words, batches, words
from plm_core.shared.files import atomic_file, sha256_file

PART = 40
"""The number of words in a part of an example; the last part ends with the example, so it overlaps the one before."""
WORDS_AT_ONCE = 1 << 24
"""The number of words in examples that are searched for together."""
LONGEST = 100_000_000
"""The bytes of the longest record allowed in an evaluation set."""
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
HITS = "hits.parquet"
"""The file of hits in a part, in addition to its removals."""


@section
class ExampleFile:
    """An evaluation set outside the corpus; the digest makes it a parameter that DVC tracks."""

    name: str
    """Its name in the report, such as ``sst-2``."""
    file: str
    """JSON lines, CSV, TSV or Parquet, in which each text field is an example, or text, in which each line is one."""
    sha256: str
    """The file's digest."""


@section
class DecontaminateConfig:
    """Section ``decontaminate`` of the parameters."""

    held_out: bool = True
    """Compare training text with the validation and test splits, the source of tasks, and validation with test."""
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


@dataclass(frozen=True)
class Hit:
    """An evaluation example found in a document, which lost text because of it: a row of the contamination report."""

    evaluation: str
    example: str
    """Its name: the document and its paragraph, or the file's line and the field."""
    document: str
    overlap: float
    """The share of the n-grams of the example, or of its best-matching part, that the document contains."""
    paragraphs: list[int]
    """The paragraphs of the document that these n-grams touch, in order."""
    text: str


@dataclass(frozen=True)
class NgramIndex:
    """The n-grams of evaluation examples: arrays only, so that processes can share it in memory."""

    overlap: float
    """The share of the n-grams of a part of an example that a document must contain."""
    shortest: int
    """The number of words of the shortest n-gram."""
    heads: np.ndarray
    """Bool, a power of two of them: whether an n-gram begins with ``shortest`` words whose hash has these last bits.
    Almost no n-gram of a text occurs in an example, and this rules most of them out, whatever their n."""
    tables: dict[int, "Table"]
    """The n-grams for each n that occurs."""
    sizes: np.ndarray
    """``[P]``, the number of distinct n-grams of each part."""
    example: np.ndarray
    """``[P]``, the example that each part belongs to."""
    names: np.ndarray
    """The names of the examples, concatenated in UTF-8: the evaluation set, a zero, and the name in it."""
    ends: np.ndarray
    """``[E + 1]``, where in ``names`` each begins, and where the last one ends."""

    def find(self, documents: Sequence[Document], paragraphs: Sequence[Sequence[str]]) -> list[list[Hit]]:
        """The examples found in each document, given with its paragraphs."""
        flat = words([text for texts in paragraphs for text in texts])
        last = np.cumsum([len(texts) for texts in paragraphs])
        edges = np.concatenate((np.zeros(1, dtype=np.int64), flat.ends))
        starts = edges[:-1]
        ends = edges[last]
        joined = Words(flat.hashes, ends)
        overlaps: list[dict[int, tuple[float, set[int]]]] = [{} for _ in documents]
        maybe = np.flatnonzero(self.heads[_last_bits(joined.sums(self.shortest), len(self.heads))])
        for n, table in self.tables.items():
            hashes, begins = joined.shingles_at(maybe, n)
            shared, entry = table.matches(hashes)
            if not len(shared):
                continue
            # Sorted so that the matches of one part in one document are adjacent, and among them those of one n-gram,
            # whose repetitions do not count.
            place = begins[shared]
            part = table.parts[entry]
            document = np.searchsorted(ends, place, side="right")
            order = np.lexsort((entry, part, document))
            document, part, entry, place = document[order], part[order], entry[order], place[order]
            bounds = np.flatnonzero(np.diff(document, prepend=-1) | np.diff(part, prepend=-1))
            new = np.concatenate(([True], np.diff(entry) != 0))
            new[bounds] = True
            counts = np.add.reduceat(new, bounds)
            for first, stop, number in zip(bounds, [*bounds[1:], len(part)], counts, strict=True):
                overlap = int(number) / int(self.sizes[part[first]])
                if overlap < self.overlap:
                    continue
                row = int(document[first])
                example = int(self.example[part[first]])
                before = int(last[row - 1]) if row else 0
                most, touched = overlaps[row].get(example, (0.0, set[int]()))
                words_of = np.concatenate((place[first:stop], place[first:stop] + n - 1))
                spans = np.searchsorted(starts, words_of, side="right") - 1 - before
                for low, high in set(map(tuple, spans.reshape(2, -1).T.tolist())):
                    touched.update(range(low, high + 1))
                overlaps[row][example] = max(most, overlap), touched
        hits: list[list[Hit]] = [[] for _ in documents]
        for own, whole, texts, examples in zip(hits, documents, paragraphs, overlaps, strict=True):
            for example, (overlap, touched) in examples.items():
                names = self.names[slice(*self.ends[example : example + 2])].tobytes().decode()
                evaluation, name = names.split("\0", 1)
                places = sorted(touched)
                text = BETWEEN.join(texts[place] for place in places)
                own.append(Hit(evaluation, name, whole.id, overlap, places, text))
        return hits


class Table:
    """The n-grams of examples, for one n."""

    def __init__(self, grams: np.ndarray, parts: np.ndarray) -> None:
        """``grams`` ``[G]`` uint64, and the part of an example that each belongs to."""
        order = np.argsort(grams, kind="stable")
        self.parts = parts[order]
        """``[G]``, in the order of entries."""
        self._grams = grams[order]

    def matches(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the hashes are n-grams here, and their entries; several if examples share one."""
        first = np.searchsorted(self._grams, hashes, side="left")
        count = np.searchsorted(self._grams, hashes, side="right") - first
        nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return np.repeat(np.arange(len(hashes)), count), nth + np.repeat(first, count)


def _last_bits(hashes: np.ndarray, size: int) -> np.ndarray:
    return hashes & np.uint64(size - 1)


def read_examples(given: ExampleFile) -> Iterator[tuple[str, str, str]]:
    """Yield the evaluation set, name and text of every text field of its records; for text files, of every line.

    Raises:
        UserError: the file is missing, not the one that ``sha256`` names, holds no text, or a record cannot be read.
    """
    path = Path(given.file)
    if not path.is_file():
        raise UserError(f"{path}: missing; expected the examples of {given.name} (decontaminate.examples)")
    if (digest := sha256_file(path)) != given.sha256:
        raise UserError(f"decontaminate.examples: {path} is {digest}; expected {given.sha256}")
    empty = True
    for record in records(path, LONGEST):
        if isinstance(record.content, Refused):
            raise UserError(f"{path}:{record.number}: {record.content}")
        if isinstance(record.content, str):
            texts = [(str(line), text) for line, text in enumerate(record.content.splitlines(), start=1)]
        else:  # the texts of its fields, including those in lists
            fields = ((name, v if isinstance(v, list) else [v]) for name, v in record.content.items())
            texts = [(f"{record.number} {name}", t) for name, values in fields for t in values if isinstance(t, str)]
        for place, text in texts:
            if text.strip():
                empty = False
                yield given.name, f"{path.name}:{place}", text
    if empty:
        raise UserError(f"{path}: holds no text; expected the examples of {given.name} (decontaminate.examples)")


class EvaluationExamples:
    """Evaluation examples to be indexed; its length and ``words`` count only those that are long enough."""

    def __init__(self, config: DecontaminateConfig) -> None:
        self.too_short = 0
        """The number of examples with too few words to be searched for."""
        self.words = 0
        self._config = config
        self._names: list[str] = []
        self._known: set[bytes] = set()
        self._found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._heads = [np.zeros(0, dtype=np.uint64)]
        self._sizes: list[int] = []
        self._example: list[int] = []

    def __len__(self) -> int:
        return len(self._names)

    def add(self, examples: Sequence[tuple[str, str, str]]) -> None:
        """Add examples, each as (evaluation set, name in it, text)."""
        hashed = words([normalize(text) for _, _, text in examples])
        parts: list[np.ndarray] = []
        example_of = []
        begins = np.concatenate((np.zeros(1, dtype=np.int64), hashed.ends[:-1]))
        for (evaluation, name, _), begin, end in zip(examples, begins.tolist(), hashed.ends.tolist(), strict=False):
            example = hashed.hashes[begin:end]
            if len(example) < self._config.shortest:
                self.too_short += 1
                continue
            for start in range(0, len(example), PART):
                parts.append(example[max(0, min(start, len(example) - PART)) :][:PART])
                example_of.append(len(self._names))
            self._names.append(f"{evaluation}\0{name}")
            self.words += len(example)
        if not parts:
            return
        # Of parts with the same words, only the first counts.
        n = self._config.ngram
        hashed = Words(np.concatenate(parts), np.cumsum([len(part) for part in parts]))
        shingles = hashed.shingles(n)
        self._heads.append(hashed.sums(self._config.shortest)[shingles.places])
        hashes = np.split(shingles.hashes, shingles.ends[:-1])
        for part, number, of_part in zip(parts, example_of, hashes, strict=True):
            grams = np.unique(of_part)
            if (key := sha256(grams.tobytes()).digest()) not in self._known:
                self._known.add(key)
                entries = np.full(len(grams), len(self._sizes), dtype=np.int32)
                self._found.setdefault(min(len(part), n), []).append((grams, entries))
                self._sizes.append(len(grams))
                self._example.append(number)

    def index(self) -> NgramIndex:
        columns = {n: [np.concatenate(column) for column in zip(*self._found[n], strict=True)] for n in self._found}
        names = [name.encode() for name in self._names]
        firsts = np.concatenate(self._heads)
        heads = np.zeros(1 << (16 * len(firsts)).bit_length(), dtype=bool)
        heads[_last_bits(firsts, len(heads))] = True
        return NgramIndex(
            self._config.overlap,
            self._config.shortest,
            heads,
            {n: Table(*columns[n]) for n in sorted(columns)},
            np.array(self._sizes, dtype=np.int32),
            np.array(self._example, dtype=np.int64),
            np.frombuffer(b"".join(names), dtype=np.uint8),
            np.cumsum([0, *map(len, names)]),
        )

    def write_index(self, path: Path) -> None:
        with atomic_file(path) as file:
            joblib.dump(self.index(), file)


def in_groups(examples: Iterable[tuple[str, str, str]], config: DecontaminateConfig) -> Iterator[EvaluationExamples]:
    """Yield groups of examples that are searched for together, from (evaluation set, name, text)."""
    group = EvaluationExamples(config)
    for some in batches(examples, lambda example: example[2]):
        if group.words >= WORDS_AT_ONCE:
            yield group
            group = EvaluationExamples(config)
        group.add(some)
    yield group


@functools.lru_cache(maxsize=1)
def open_index(file: Path) -> NgramIndex:
    """The index in a file, mapped into memory."""
    index: NgramIndex = joblib.load(file, mmap_mode="r")
    return index


def decontaminate_part(work: tuple[SidePart, Path], folder: Path) -> None:
    """Write the paragraphs of a side that hold examples of an index, the hits, and the counts of what is left."""
    part, index = work
    with removal_log(folder) as log, row_writer(folder / HITS, SCHEMA, asdict) as written:
        for document, removals, hits in decontaminate(part.documents(), open_index(index)):
            for hit in hits:
                written.write(hit)
            log.remove(document, removals)
            if document.text:
                log.keep(document, part.side)


def decontaminate(
    documents: Iterable[Document], index: NgramIndex
) -> Iterator[tuple[Document, list[Removal], list[Hit]]]:
    """Yield each document without the paragraphs that contain examples, with those paragraphs and the examples."""
    for group in batches(documents, lambda document: document.text):
        split = [paragraphs_of(document.text) for document in group]
        for document, paragraphs, hits in zip(group, split, index.find(group, split), strict=True):
            reasons: dict[int, str] = {}
            for hit in hits:
                for place in hit.paragraphs:
                    reasons.setdefault(place, f"{hit.evaluation} {hit.example} (overlap {hit.overlap:.2f})")
            removals = [
                Removal(document.id, place, document.source, "contaminated", reason, paragraphs[place])
                for place, reason in sorted(reasons.items())
            ]
            kept = BETWEEN.join(text for place, text in enumerate(paragraphs) if place not in reasons)
            yield replace(document, text=kept), removals, hits
