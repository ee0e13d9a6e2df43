"""Train, validation and test by the hash of an id: the document's, or that of the first of its duplicates.

Used by the stage deduplicate. A document's side depends on that id alone: new documents do not move others, except
their duplicates, which follow the first of them.
"""

from typing import Annotated

from pydantic import Field

from plm_core.config import section
from plm_core.files import sha256_text

SPLITS = ("train", "valid", "test")


@section
class SplitConfig:
    """Section ``split`` of the parameters."""

    valid: Annotated[float, Field(gt=0, lt=1)]
    """The share of documents held out for choosing the best checkpoint."""
    test: Annotated[float, Field(gt=0, lt=1)]
    """The share of documents held out for the reported figures."""
    salt: str
    """Another salt draws another split; never change it while there is a champion."""

    def __post_init__(self) -> None:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid: {self.valid} and test: {self.test}; expected a sum below 1")


def split_of(document_id: str, config: SplitConfig) -> str:
    """The side of a document: ``train``, ``valid`` or ``test``."""
    place = place_of(f"{config.salt}/{document_id}")
    if place < config.test:
        return "test"
    return "valid" if place < config.test + config.valid else "train"


def place_of(text: str) -> float:
    """The position of a text's hash among all hashes, from 0 to 1."""
    return int(sha256_text(text)[:16], 16) / 2**64
