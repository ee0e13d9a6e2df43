"""The section ``deduplicate``: what counts as a duplicate, and what becomes of it. Read without heavy libraries."""

from dataclasses import field
from typing import Literal

from pydantic import PositiveInt

from plm_core.config import PositiveShare, section


@section
class Similarity:
    """When two texts count as near-duplicates."""

    threshold: PositiveShare = 0.75
    """The smallest Jaccard similarity of their sets of shingles."""
    shingle: PositiveInt = 5
    """Words in a shingle."""
    bands: PositiveInt = 16
    """b: texts are compared if one of b parts of their signatures is equal ..."""
    rows: PositiveInt = 5
    """r: ... of r values each. Two texts of similarity s are compared with probability 1 - (1 - s^r)^b."""


@section
class DeduplicateConfig:
    """Section ``deduplicate`` of the parameters."""

    documents: Literal["keep_one", "same_side", "off"] = "keep_one"
    """Of documents that are duplicates ``keep_one``; keep all, on the ``same_side`` of the split; or do not look."""
    paragraphs: Literal["keep_one", "off"] = "keep_one"
    """The same for the paragraphs of all documents that are kept."""
    similarity: Similarity = field(default_factory=Similarity)
    """When texts count as duplicates."""

    def __post_init__(self) -> None:
        if self.documents == "same_side" and self.paragraphs != "off":
            raise ValueError(
                f"documents: same_side keeps duplicates, of which paragraphs: {self.paragraphs} would leave nothing; "
                "expected paragraphs: off beside it"
            )
