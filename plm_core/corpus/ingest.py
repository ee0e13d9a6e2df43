"""A source in parts that are read in parallel, and joined in the order of their ids. Used by the stage ingest.

An id must be unique in a source, and only the join sees all of a source: of documents with the same id, the source's
first one is kept.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from plm_core.corpus.document import Document, document_writer, write_documents
from plm_core.corpus.order import Sorter
from plm_core.corpus.parts import Part
from plm_core.corpus.quarantine import Quarantined, Refused, quarantine_writer, quarantined
from plm_core.corpus.sources import open_source
from plm_core.corpus.sources.fields import shown
from plm_core.corpus.sources.source import Readable
from plm_core.files import scratch_folder

DOCUMENTS, REFUSED, COUNTS = "documents.parquet", "refused.jsonl", "counts.json"
"""Files: the documents read or joined, in the order of their ids; refused records; counts of documents and bytes."""


def read_part(work: tuple[str, Readable], folder: Path) -> None:
    """Read a part of the source with the given name."""
    name, part = work
    with scratch_folder(folder / DOCUMENTS) as scratch, quarantine_writer(folder / REFUSED) as refuse:
        sorter = Sorter(scratch)
        for record in open_source(name, part):
            if isinstance(record, Document):
                sorter.add(record)
            else:
                refuse(record)
        write_documents(folder / DOCUMENTS, sorter.documents())


def join_part(work: tuple[str, Part], folder: Path) -> None:
    """Write the documents of a source whose ids lie between two others, from all parts that were read."""
    name, part = work
    last = None
    size = 0
    with document_writer(folder / DOCUMENTS) as writer, quarantine_writer(folder / REFUSED) as refuse:
        for document in part.documents(unique=False):
            if document.id == last:
                identity = shown(document.id.removeprefix(f"{name}/"))
                why = Refused("duplicate_id", f"the id {identity} was used before; expected unique ids")
                refuse(quarantined(document.source, why, document.text))
                continue
            last = document.id
            size += len(document.text.encode())
            writer.write(replace(document, source=name))
    (folder / COUNTS).write_text(json.dumps({"documents": writer.count, "bytes": size}), encoding="utf-8")


def refused(results: Iterable[Path]) -> Iterator[Quarantined]:
    """Yield the records that were refused, in the order of the results."""
    for result in results:
        with (result / REFUSED).open(encoding="utf-8") as file:
            yield from (Quarantined(**json.loads(line)) for line in file)
