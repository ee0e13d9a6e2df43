"""The section ``deduplicate``: what counts as a duplicate, and what becomes of it. Read without heavy libraries."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Similarity:
    """When two texts count as near-duplicates."""

    threshold: float = 0.75
    """The smallest Jaccard similarity of their sets of shingles, above 0 and at most 1."""
    shingle: int = 5
    """Words in a shingle."""
    bands: int = 16
    """b: texts are compared if one of b parts of their signatures is equal ..."""
    rows: int = 5
    """r: ... of r values each. Two texts of similarity s are compared with probability 1 - (1 - s^r)^b."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold: {self.threshold}; expected above 0 and at most 1")
        for name in ("shingle", "bands", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; expected at least 1")


@dataclass(frozen=True)
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
