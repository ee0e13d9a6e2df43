"""Deduplication of documents and of their paragraphs, and the sides of the split, part by part in a ``Pool``.

Used by the stage deduplicate. Of texts that are duplicates of each other, directly or through others, the first by id
is kept; of paragraphs, the first in the first document. The order in which sources deliver does not matter. Each pass
writes only what it removes; the held-out sides, which are small, are also written when the corpus is split, and the
training text only once, at the end.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plm_core.configs.stage_configs import DeduplicateConfig
from plm_core.corpus.document import Document, Part, document_writer, read_documents
from plm_core.corpus.minhash import find_duplicates, open_indexes, write_index
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.part_pool import Pool
from plm_core.corpus.removals import KEPT, Removal, remaining, removal_log
from plm_core.corpus.splits_and_mixtures import SPLITS, SplitConfig, copies, split_of
from plm_core.shared.files import atomic_file

NAMES, NAME_ENDS = "names.txt", "names.npy"
"""The names of the texts of an indexed part, concatenated in UTF-8, and where each begins and the last one ends."""
HELD_OUT = SPLITS[1:]


class Repeat(NamedTuple):
    """The text that another one repeats, with the rule and the measurement."""

    name: str
    """The id of the first of its duplicates; for a paragraph, followed by its place."""
    rule: str
    value: str


@dataclass(frozen=True)
class PartOf:
    """A part of the corpus with what was found in it."""

    part: Part
    config: DeduplicateConfig
    documents: Path | None = None
    """The file of the documents that are repeats, each a ``Repeat`` by its number in the part; None: there are none."""
    paragraphs: Path | None = None
    """The same for the paragraphs of the documents that are kept."""


@dataclass(frozen=True)
class Deduplicated:
    """A document after deduplication; its text is empty if no paragraph is left."""

    document: Document
    group: str
    """The id of the first of its duplicates, itself included: a group stays on one side of the split."""
    removals: list[Removal]


def deduplicate(parts: Sequence[Part], config: DeduplicateConfig, pool: Pool) -> list[PartOf]:
    """Find what is repeated in the parts of a corpus, which are in the order of their ids.

    Raises:
        UserError: a file is damaged, or there are more texts than ``find_duplicates`` takes.
        OSError: the disk is full.
    """
    deduplicated = [PartOf(part, config) for part in parts]
    for level, wanted in (("documents", config.documents != "off"), ("paragraphs", config.paragraphs == "keep_one")):
        if wanted:
            pool.map(level, index_part, [(indexed, level) for indexed in deduplicated], keep=True)
            files = _write_repeats(level, config, pool)
            deduplicated = [
                replace(indexed, documents=file) if level == "documents" else replace(indexed, paragraphs=file)
                for indexed, file in zip(deduplicated, files, strict=True)
            ]
    return deduplicated


def index_part(work: tuple[PartOf, str], folder: Path) -> None:
    """Write the index of a part's documents, or of the paragraphs of those that are not removed whole."""
    part, level = work
    names: list[bytes] = []

    def texts() -> Iterator[str]:
        for document in (kept.document for kept in without_repeats(part)):
            if level == "documents":
                names.append(document.id.encode())
                yield document.text
                continue
            for place, text in enumerate(paragraphs_of(document.text)):
                names.append(f"{document.id}#{place}".encode())
                yield text

    write_index(texts(), part.config.similarity, folder)
    (folder / NAMES).write_bytes(b"".join(names))
    np.save(folder / NAME_ENDS, np.array(list(accumulate(map(len, names), initial=0)), dtype=np.int64))


def _write_repeats(job: str, config: DeduplicateConfig, pool: Pool) -> list[Path]:
    """Find the repeats among the texts that a job has indexed, and write a file for each part."""
    duplicates = find_duplicates(pool.folder / job, config.similarity, pool)
    repeated = np.flatnonzero(duplicates.original != np.arange(len(duplicates.original)))
    index = open_indexes(pool.folder / job)
    names: dict[int, str] = {}
    originals_of = index.divided(np.unique(duplicates.original[repeated]))
    for part, (begin, originals) in zip(index.parts, originals_of, strict=True):
        ends = np.load(part / NAME_ENDS, mmap_mode="r")
        with (part / NAMES).open("rb") as file:
            for row in originals.tolist():
                start, stop = ends[row - begin : row - begin + 2].tolist()
                file.seek(start)
                names[row] = file.read(stop - start).decode()
    files = []
    for number, (begin, rows) in enumerate(index.divided(repeated)):
        repeats = {}
        for row in rows.tolist():
            name = names[int(duplicates.original[row])]
            value = name if duplicates.exact[row] else f"{name} (similarity {duplicates.similarity[row]:.2f})"
            repeats[row - begin] = Repeat(name, "exact_duplicate" if duplicates.exact[row] else "near_duplicate", value)
        files.append(pool.folder / f"{job}-repeats" / f"{number:06d}.pickle")
        with atomic_file(files[-1]) as written:
            written.write_bytes(pickle.dumps(repeats))
    return files


def without_repeats(indexed: PartOf) -> Iterator[Deduplicated]:
    """Yield every document of a part, in order, with what it keeps."""
    documents, paragraphs = (
        dict[int, Repeat](pickle.loads(file.read_bytes()) if file else {})
        for file in (indexed.documents, indexed.paragraphs)
    )
    before = 0
    for number, document in enumerate(indexed.part.documents()):
        repeat = documents.get(number)
        group = repeat.name if repeat else document.id
        if repeat and indexed.config.documents == "keep_one":
            removal = Removal(document.id, None, document.source, repeat.rule, repeat.value, document.text)
            yield Deduplicated(replace(document, text=""), group, [removal])
            continue
        kept, removals = [], []
        texts = paragraphs_of(document.text)
        for place, text in enumerate(texts):
            if again := paragraphs.get(before + place):
                removals.append(Removal(document.id, place, document.source, again.rule, again.value, text))
            else:
                kept.append(text)
        before += len(texts)
        yield Deduplicated(replace(document, text=BETWEEN.join(kept)), group, removals)


@dataclass(frozen=True)
class SidePart:
    """One side of the split in a part of the corpus."""

    side: str
    source: tuple[PartOf, SplitConfig] | Path
    """The part and how it is split; for a held-out side, its documents in a file."""
    removed: tuple[Path, ...] = ()
    """What the passes so far have removed, a table each."""

    def documents(self) -> Iterator[Document]:
        """What is left of the documents, in order; documents of which nothing is left are omitted."""
        if isinstance(self.source, Path):
            documents = read_documents(self.source)
        else:
            part, split = self.source
            documents = (
                kept.document
                for kept in without_repeats(part)
                if kept.document.text and split_of(kept.group, split) == self.side
            )
        for table in self.removed:
            documents = remaining(documents, table)
        return documents


def split_part(work: tuple[PartOf, SplitConfig], folder: Path) -> None:
    """Write what is repeated in a part, and the documents of its held-out sides."""
    part, split = work
    with removal_log(folder) as log, ExitStack() as files:
        sides = {name: files.enter_context(document_writer(folder / f"{name}.parquet")) for name in HELD_OUT}
        for kept in without_repeats(part):
            log.remove(kept.document, kept.removals)
            if kept.document.text and (side := split_of(kept.group, split)) in sides:
                sides[side].write(kept.document)


def write_side(work: tuple[SidePart, Mapping[str, float], int], folder: Path) -> None:
    """Write the documents of a side that occur there at least ``number`` times; sources not in the mapping occur once.

    A copy has its number after the id; the pass with number 1 removes the documents that do not occur at all.
    """
    part, repeats, number = work
    with removal_log(folder) as log, document_writer(folder / KEPT) as kept:
        for document in part.documents():
            often = repeats.get(document.source, 1.0)
            times = copies(document.id, often)
            if number == 1 and times == 0:
                value = f"0 copies; of its source, {often:.3f} of each document"
                log.remove(document, [Removal(document.id, None, document.source, "mixture", value, document.text)])
            if number <= times:
                again = document if number == 1 else replace(document, id=f"{document.id} (copy {number})")
                log.keep(again, part.side)
                kept.write(again)
