"""Datasets of the Hugging Face hub, for the corpus. The source ``hub``; its input is a manifest that pins one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plm_core.config import section
from plm_core.corpus.document import Document
from plm_core.corpus.hub import HubPin, hub_rows, read_pin
from plm_core.corpus.quarantine import Quarantined
from plm_core.corpus.records import Record, within
from plm_core.corpus.sources.source import Records, documents_of


@section
class HubManifest(HubPin):
    """The pin of a dataset, and the part of it that is read."""

    split: str
    """Which split is read, such as ``train``."""
    config: str | None = None
    """Which of the dataset's configurations (subsets); null for the only one."""


@section
class Hub(Records):
    """A dataset of the hub, one document per row, in its order."""

    def origin(self) -> dict[str, Any]:
        """As ``Source.origin``; also UserError if the manifest is not one of a dataset on the hub."""
        read_pin(HubManifest, Path(self.input))
        return super().origin()

    def read(self) -> Iterator[Document | Quarantined]:
        """As ``Source.read``; also UserError if the hub has no such dataset, commit, configuration or split."""
        return documents_of(self._records(), self)

    def _records(self) -> Iterator[tuple[str, str, Record]]:
        manifest = read_pin(HubManifest, Path(self.input))
        rows = hub_rows(manifest, manifest.config, manifest.split, Path(self.input))
        for number, row in enumerate(rows, start=1):
            record = Record(number, within(row, self.max_record_bytes))
            yield f"{manifest.dataset}@{manifest.revision}:{number}", str(number), record
