"""Datasets of the Hugging Face hub, streamed: nothing but what is read comes over the network. The source ``hub``.

The input is a manifest that pins a commit of the dataset: a branch or a tag can be moved, and the corpus with it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plm_core.config import BadInput, from_dict
from plm_core.corpus.document import Document
from plm_core.corpus.quarantine import Quarantined
from plm_core.corpus.records import Record, within
from plm_core.corpus.sources.fields import Fields, documents_of


@dataclass(frozen=True)
class HubManifest:
    """The pin of a dataset on the hub."""

    dataset: str
    """Its name there, ``owner/name``."""
    revision: str
    """The commit, 40 hexadecimal digits; the dataset's page shows it under "Files and versions"."""
    split: str
    """Which split is read, such as ``train``."""
    license: str
    """The licence of the text."""
    homepage: str
    """Where the dataset is described."""
    config: str | None = None
    """Which of the dataset's configurations (subsets); null for the only one."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError(f"revision: found {self.revision!r}; expected a commit, 40 hexadecimal digits")


def read(manifest_file: str, fields: Fields, max_record_bytes: int) -> Iterator[Document | Quarantined]:
    """Yield one document a row of the dataset, in its order.

    Raises:
        BadInput: the manifest cannot be used, or the hub has no such dataset, commit, configuration or split.
        OSError: the hub cannot be reached.
    """
    return documents_of(_records(manifest_file, max_record_bytes), fields)


def _records(manifest_file: str, limit: int) -> Iterator[tuple[str, str, Record]]:
    manifest = _manifest(Path(manifest_file))
    for number, row in enumerate(_rows(manifest, manifest_file), start=1):
        yield f"{manifest.dataset}@{manifest.revision}:{number}", str(number), Record(number, within(row, limit))


def _manifest(path: Path) -> HubManifest:
    try:
        return from_dict(HubManifest, json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}; expected the manifest of a dataset on the hub (JSON)") from error


def _rows(manifest: HubManifest, manifest_file: str) -> Iterator[dict[str, Any]]:
    import datasets

    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(
            manifest.dataset, manifest.config, split=manifest.split, revision=manifest.revision, streaming=True
        )
    # No such dataset, commit or file; no such configuration or split. A hub that cannot be reached is tried again.
    except (FileNotFoundError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{manifest_file}: {manifest.dataset} at {manifest.revision}: {reason}") from error
