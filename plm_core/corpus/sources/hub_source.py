"""Datasets of the Hugging Face hub, streamed: only what is read is transferred.

A manifest (JSON) pins a commit of the dataset: a branch or tag may move, and change what is read. Used by the source
``hub``, whose input is a manifest, and by the examples of GLUE. One request checks first whether the hub answers,
because its own libraries retry five times, for more than half a minute.
"""

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from plm_core.config import UserError, from_json, section
from plm_core.corpus.document import Document
from plm_core.corpus.records import Record, within_limit
from plm_core.corpus.removals import Quarantined
from plm_core.corpus.sources.source import Records, documents_of

PATIENCE = 10
"""Seconds within which the hub must answer."""


def endpoint() -> str:
    """The address of the hub; ``HF_ENDPOINT`` names another one."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def require_hub() -> None:
    """Send one request; OSError if the hub does not answer. Any answer will do."""
    request = urllib.request.Request(endpoint(), method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except OSError as error:
        raise OSError(f"{endpoint()} does not answer ({error})") from error


Pin = TypeVar("Pin", bound="HubPin")


@section
class HubPin:
    """The pin of a dataset on the hub."""

    dataset: str
    """Its name on the hub, ``owner/name``; or the folder of a clone."""
    revision: str
    """The commit, 40 hexadecimal digits; the dataset's page shows it under "Files and versions"."""
    license: str
    """The licence of the text."""
    homepage: str
    """Where the dataset is described."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError(f"revision: found {self.revision!r}; expected a commit, 40 hexadecimal digits")


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

        def documents() -> Iterator[tuple[str, str, Record]]:
            manifest = read_pin(HubManifest, Path(self.input))
            rows = hub_rows(manifest, manifest.config, manifest.split, Path(self.input))
            for number, row in enumerate(rows, start=1):
                record = Record(number, within_limit(row, self.max_record_bytes))
                yield f"{manifest.dataset}@{manifest.revision}:{number}", str(number), record

        return documents_of(documents(), self)


def read_pin(cls: type[Pin], path: Path) -> Pin:
    """Read a manifest from a file; UserError if it is not one."""
    return from_json(cls, path, "the manifest of a dataset on the hub (JSON)")


def hub_rows(
    pin: HubPin, config: str | None, split: str, manifest: Path, named: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one split of one configuration (subset) of the dataset, in its order.

    With ``named``, the ids of classes become the names of the classes, None for an id of no class such as -1, and
    32-bit numbers become their shortest decimals, which are what was in the data originally.

    Raises:
        UserError: the hub has no such dataset, commit, configuration or split.
        OSError: the hub cannot be reached, which one request checks first.
    """
    import datasets

    try:
        if not Path(pin.dataset).is_dir():
            require_hub()
    except OSError as error:
        raise OSError(
            f"{manifest}: {pin.dataset} cannot be downloaded: {error}; connect, or download the data elsewhere and "
            "name its folder as the input"
        ) from error
    datasets.disable_progress_bars()
    try:
        stream = datasets.load_dataset(pin.dataset, config, split=split, revision=pin.revision, streaming=True)
        features = stream.features or {} if named else {}
        for row in stream:
            for name, feature in features.items():
                row[name] = _readable(row[name], feature)
            yield row
    # No such dataset, commit or file; no such configuration or split. A retry would not help.
    except (FileNotFoundError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{manifest}: {pin.dataset} at {pin.revision}: {reason}") from error


def _readable(value: Any, feature: Any) -> Any:
    if type(value) is int and hasattr(feature, "names"):
        return feature.names[value] if 0 <= value < len(feature.names) else None
    if type(value) is float and getattr(feature, "dtype", None) == "float32":
        import numpy as np

        return float(str(np.float32(value)))
    return value
