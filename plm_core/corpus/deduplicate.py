"""Deduplication of documents and of their paragraphs, recording each removal with the text that it repeats.

Used by the stage deduplicate. Of texts that are duplicates of each other, directly or through others, the first by id
is kept; of paragraphs, the first in the first document. The order in which sources deliver does not matter, and all but
the last step of the search runs in a ``Pool``.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plm_core.corpus.document import Document, Part
from plm_core.corpus.minhash import find_duplicates, opened, write_index
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.pool import Pool
from plm_core.corpus.removal import Removal
from plm_core.files import atomic_file
from plm_core.sections.deduplicate import DeduplicateConfig, Similarity

NAMES, NAME_ENDS = "names.txt", "names.npy"
"""The names of the texts of an indexed part, concatenated in UTF-8, and where each begins and the last one ends."""


class Repeat(NamedTuple):
    """The text that another one repeats."""

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
    """A document after deduplication."""

    document: Document
    """The document with the paragraphs that it keeps; if there are none, its text is empty."""
    group: str
    """The id of the first of its duplicates, itself included: a group stays on one side of the split."""
    removals: list[Removal]
    """What was removed from it: paragraphs, or the whole document."""


def deduplicate(parts: Sequence[Part], config: DeduplicateConfig, pool: Pool) -> list[PartOf]:
    """Find what is repeated in a corpus.

    Args:
        parts: in the order of their ids.
        config: the kinds of duplicates to find.
        pool: runs the work.

    Raises:
        UserError: a file is damaged, or there are more texts than ``find_duplicates`` takes.
        OSError: the disk is full.
    """
    found = [PartOf(part, config) for part in parts]
    if config.documents != "off":
        pool.map("documents", index_documents, found)
        repeats = _search("documents", config.similarity, pool)
        found = [replace(one, documents=file) for one, file in zip(found, repeats, strict=True)]
    if config.paragraphs == "keep_one":
        pool.map("paragraphs", index_paragraphs, found)
        repeats = _search("paragraphs", config.similarity, pool)
        found = [replace(one, paragraphs=file) for one, file in zip(found, repeats, strict=True)]
    return found


def without_repeats(found: PartOf) -> Iterator[Deduplicated]:
    """Yield every document of a part, in order, with what it keeps."""
    documents, paragraphs = _repeats(found.documents), _repeats(found.paragraphs)
    before = 0
    for number, document in enumerate(found.part.documents()):
        repeat = documents.get(number)
        group = repeat.name if repeat else document.id
        if repeat and found.config.documents == "keep_one":
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


def index_documents(found: PartOf, folder: Path) -> None:
    """Write the index of a part's documents."""
    named = ((document.id, document.text) for document in found.part.documents())
    _write_index(named, found.config.similarity, folder)


def index_paragraphs(found: PartOf, folder: Path) -> None:
    """Write the index of the paragraphs of a part's documents, without those that are removed whole."""
    removed = _repeats(found.documents) if found.config.documents == "keep_one" else {}
    named = (
        (f"{document.id}#{place}", text)
        for number, document in enumerate(found.part.documents())
        if number not in removed
        for place, text in enumerate(paragraphs_of(document.text))
    )
    _write_index(named, found.config.similarity, folder)


def _write_index(named: Iterable[tuple[str, str]], similarity: Similarity, folder: Path) -> None:
    names: list[bytes] = []

    def texts() -> Iterator[str]:
        for name, text in named:
            names.append(name.encode())
            yield text

    write_index(texts(), similarity, folder)
    (folder / NAMES).write_bytes(b"".join(names))
    np.save(folder / NAME_ENDS, np.array(list(accumulate(map(len, names), initial=0)), dtype=np.int64))


def _search(job: str, similarity: Similarity, pool: Pool) -> list[Path]:
    """Find the repeats among the texts that a job has indexed: a file for each part."""
    found = find_duplicates(pool.folder / job, similarity, pool)
    repeated = np.flatnonzero(found.original != np.arange(len(found.original)))
    index = opened(pool.folder / job)
    names: dict[int, str] = {}
    for part, (begin, originals) in zip(index.parts, index.divided(np.unique(found.original[repeated])), strict=True):
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
            name = names[int(found.original[row])]
            value = name if found.exact[row] else f"{name} (similarity {found.similarity[row]:.2f})"
            repeats[row - begin] = Repeat(name, "exact_duplicate" if found.exact[row] else "near_duplicate", value)
        files.append(pool.folder / f"{job}-repeats" / f"{number:06d}.pickle")
        with atomic_file(files[-1]) as written:
            written.write_bytes(pickle.dumps(repeats))
    return files


def _repeats(file: Path | None) -> dict[int, Repeat]:
    if file is None:
        return {}
    repeats: dict[int, Repeat] = pickle.loads(file.read_bytes())
    return repeats
