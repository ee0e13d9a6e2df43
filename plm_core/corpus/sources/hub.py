"""Datasets of the Hugging Face hub, for the corpus. The source ``hub``; its input is a manifest that pins one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plm_core.corpus.document import Document
from plm_core.corpus.hub import HubPin, hub_rows, read_pin
from plm_core.corpus.quarantine import Quarantined
from plm_core.corpus.records import Record, within
from plm_core.corpus.sources.fields import Fields, documents_of


@dataclass(frozen=True, kw_only=True)
class HubManifest(HubPin):
    """The pin of a dataset, and which part of it is read."""

    split: str
    """Which split is read, such as ``train``."""
    config: str | None = None
    """Which of the dataset's configurations (subsets); null for the only one."""


def read(manifest_file: str, fields: Fields, max_record_bytes: int) -> Iterator[Document | Quarantined]:
    """Yield one document a row of the dataset, in its order.

    Raises:
        UserError: the manifest cannot be used, or the hub has no such dataset, commit, configuration or split.
        OSError: the hub cannot be reached.
    """
    return documents_of(_records(Path(manifest_file), max_record_bytes), fields)


def _records(manifest_file: Path, limit: int) -> Iterator[tuple[str, str, Record]]:
    manifest = read_pin(HubManifest, manifest_file)
    rows = hub_rows(manifest, manifest.config, manifest.split, manifest_file)
    for number, row in enumerate(rows, start=1):
        yield f"{manifest.dataset}@{manifest.revision}:{number}", str(number), Record(number, within(row, limit))
