"""The section ``deduplicate``: what counts as a duplicate, and what happens to it. Read without heavy libraries."""

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
    """b: texts are compared if at least one of the b bands of their signatures is equal ..."""
    rows: PositiveInt = 5
    """r: ... of r values each. Two texts of similarity s are compared with probability 1 - (1 - s^r)^b."""


@section
class DeduplicateConfig:
    """Section ``deduplicate`` of the parameters."""

    documents: Literal["keep_one", "same_side", "off"] = "keep_one"
    """What happens to duplicate documents: ``keep_one``; keep all, on the ``same_side`` of the split; or ``off``."""
    paragraphs: Literal["keep_one", "off"] = "keep_one"
    """The same for the paragraphs of all documents that are kept."""
    similarity: Similarity = field(default_factory=Similarity)
    """When texts count as duplicates."""

    def __post_init__(self) -> None:
        if self.documents == "same_side" and self.paragraphs != "off":
            raise ValueError(
                f"documents: same_side keeps duplicates, but paragraphs: {self.paragraphs} would leave nothing of "
                "them; expected paragraphs: off together with it"
            )
