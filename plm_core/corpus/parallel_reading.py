"""A source in parts that are read in parallel, and joined in the order of their ids. Used by the stage ingest.

An id must be unique in a source, and only the join sees all of a source: of documents with the same id, the source's
first one is kept.
"""

import heapq
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from operator import attrgetter
from pathlib import Path

from plm_core.corpus.document import Document, Part, document_writer, read_documents, write_documents
from plm_core.corpus.removals import Quarantined, Refused, quarantine_writer, quarantined
from plm_core.corpus.sources import open_source
from plm_core.corpus.sources.source import Readable, shorten

DOCUMENTS, REFUSED, COUNTS = "documents.parquet", "refused.jsonl", "counts.json"
"""Files: the documents read or joined, in the order of their ids; refused records; counts of documents and bytes."""
CHARACTERS_AT_ONCE = 1 << 26
"""Characters of documents that are sorted in memory; larger inputs are written to disk in sorted runs and merged."""
OBJECTS = 500
"""The memory overhead of a document, counted in characters."""
MOST_RUNS = 64
"""This many sorted files are merged into one; an open one takes a few megabytes of memory."""
BY_ID = attrgetter("id")


def read_part(work: tuple[str, Readable], folder: Path) -> None:
    """Read a part of the source with the given name."""
    name, part = work
    with tempfile.TemporaryDirectory(dir=folder) as scratch, quarantine_writer(folder / REFUSED) as refuse:

        def documents() -> Iterator[Document]:
            for record in open_source(name, part):
                if isinstance(record, Document):
                    yield record
                else:
                    refuse(record)

        write_documents(folder / DOCUMENTS, _sorted_by_id(documents(), Path(scratch)))


def _sorted_by_id(documents: Iterable[Document], scratch: Path) -> Iterator[Document]:
    """An external merge sort in an existing folder; documents with the same id stay in their order."""
    names = (scratch / f"run-{number:05d}.parquet" for number in count())
    runs: list[Path] = []
    held: list[Document] = []
    size = 0
    for document in documents:
        held.append(document)
        fields = sum(len(str(value)) for value in document.metadata.values())
        size += len(document.text) + len(document.id) + fields + OBJECTS
        if size >= CHARACTERS_AT_ONCE:
            runs.append(next(names))
            write_documents(runs[-1], sorted(held, key=BY_ID))
            held = []
            size = 0
            if len(runs) == MOST_RUNS:
                merged = next(names)
                write_documents(merged, heapq.merge(*map(read_documents, runs), key=BY_ID))
                for run in runs:
                    run.unlink()
                runs = [merged]
    yield from heapq.merge(*map(read_documents, runs), sorted(held, key=BY_ID), key=BY_ID)


def join_part(work: tuple[str, Part], folder: Path) -> None:
    """Write the documents of a source whose ids lie between two others, from all parts that were read."""
    name, part = work
    last = None
    size = 0
    with document_writer(folder / DOCUMENTS) as writer, quarantine_writer(folder / REFUSED) as refuse:
        for document in part.documents(unique=False):
            if document.id == last:
                identity = shorten(document.id.removeprefix(f"{name}/"))
                why = Refused("duplicate_id", f"the id {identity} was used before; expected unique ids")
                refuse(quarantined(document.source, why, document.text))
                continue
            last = document.id
            size += len(document.text.encode())
            writer.write(replace(document, source=name))
    (folder / COUNTS).write_text(json.dumps({"documents": writer.count, "bytes": size}), encoding="utf-8")


def refused(results: Iterable[Path]) -> Iterator[Quarantined]:
    """The records that were refused, in the order of the results."""
    for result in results:
        with (result / REFUSED).open(encoding="utf-8") as file:
            yield from (Quarantined(**json.loads(line)) for line in file)
