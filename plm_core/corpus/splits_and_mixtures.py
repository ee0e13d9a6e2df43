"""Train, validation and test, and the proportions of the sources in the training split. Used by the stage deduplicate.

A document's side depends on the hash of an id alone, its own or that of the first of its duplicates: new documents do
not move others, except their duplicates, which follow the first of them.

A source that has more than its share of the mixture is thinned out, document by document, by the hash of their ids;
with ``max_repeats`` above 1, one that has less is repeated (Muennighoff et al. 2023: up to 4 times costs little). The
total is the largest that allows all shares.
"""

import math
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import Field

from plm_core.config import PositiveShare, UserError, section
from plm_core.shared.files import sha256_text

SPLITS = ("train", "valid", "test")


@section
class SplitConfig:
    """Section ``split`` of the parameters."""

    valid: Annotated[float, Field(gt=0, lt=1)]
    """The share of documents held out for choosing the best checkpoint."""
    test: Annotated[float, Field(gt=0, lt=1)]
    """The share of documents held out for the reported figures."""
    salt: str
    """A different salt gives a different split; never change it while there is a champion."""

    def __post_init__(self) -> None:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid: {self.valid} and test: {self.test}; expected a sum below 1")


def split_of(document_id: str, config: SplitConfig) -> str:
    """The side of a document: ``train``, ``valid`` or ``test``."""
    place = hash_position(f"{config.salt}/{document_id}")
    if place < config.test:
        return "test"
    return "valid" if place < config.test + config.valid else "train"


def hash_position(text: str) -> float:
    """The position of a text's hash among all hashes, from 0 to 1."""
    return int(sha256_text(text)[:16], 16) / 2**64


@section
class MixtureConfig:
    """Section ``mixture`` of the parameters."""

    shares: dict[str, PositiveShare] | None = None
    """The share of each source in the bytes of the training split, summing to 1; null: all of each, once."""
    max_repeats: Annotated[float, Field(ge=1)] = 1.0
    """How many times a source's documents may occur in the training split."""

    def __post_init__(self) -> None:
        if self.shares is not None and abs(sum(self.shares.values()) - 1) > 1e-6:
            raise ValueError(f"shares: they sum to {sum(self.shares.values())}; expected 1")


def repeats(sizes: Mapping[str, int], config: MixtureConfig) -> dict[str, float]:
    """How often the documents of each source occur in the training split, given each source's bytes there.

    Raises:
        UserError: ``shares``, which must be set, names other sources than those with training text.
    """
    assert config.shares is not None
    require_sources(config, sizes)
    total = min(sizes[name] * config.max_repeats / share for name, share in config.shares.items())
    return {name: total * share / sizes[name] for name, share in config.shares.items()}


def require_sources(config: MixtureConfig, sources: Collection[str]) -> None:
    """Raise UserError unless ``shares``, if set, name exactly these sources."""
    if config.shares is not None and config.shares.keys() != set(sources):
        shares = ", ".join(sorted(config.shares))
        expected = ", ".join(sorted(sources))
        raise UserError(f"mixture.shares: found {shares}; expected the sources with training text: {expected}")


def copies(document_id: str, repeats: float) -> int:
    """How often this document occurs in the training split: ``repeats`` rounded up or down, by the hash of its id."""
    whole = math.floor(repeats)
    return whole + (hash_position(f"mixture/{document_id}") < repeats - whole)
