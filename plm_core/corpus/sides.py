"""The sides of the split, part by part: what is left of one after the passes so far, and its final text.

Used by the stage deduplicate. The held-out sides, which are small, are written when the corpus is split; the training
text is only written once, at the end.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from plm_core.corpus.deduplicate import PartOf, without_repeats
from plm_core.corpus.document import Document, document_writer, read_documents
from plm_core.corpus.mixture import copies
from plm_core.corpus.removal import KEPT, Removal, remaining, removal_log
from plm_core.corpus.split import SPLITS, SplitConfig, split_of

HELD_OUT = SPLITS[1:]


@dataclass(frozen=True)
class SidePart:
    """One side of the split in a part of the corpus."""

    side: str
    source: tuple[PartOf, SplitConfig] | Path
    """The part and how it is split; for a held-out side, its documents in a file."""
    removed: tuple[Path, ...] = ()
    """What the passes so far have removed, a table each."""

    def documents(self) -> Iterator[Document]:
        """What is left of the documents, in order; those of which nothing is left are left out."""
        documents = read_documents(self.source) if isinstance(self.source, Path) else self._split(*self.source)
        for table in self.removed:
            documents = remaining(documents, table)
        return documents

    def _split(self, part: PartOf, shares: SplitConfig) -> Iterator[Document]:
        for found in without_repeats(part):
            if found.document.text and split_of(found.group, shares) == self.side:
                yield found.document


def split_part(work: tuple[PartOf, SplitConfig], folder: Path) -> None:
    """Write what is repeated in a part, and the documents of its held-out sides."""
    part, shares = work
    with removal_log(folder) as log, ExitStack() as files:
        sides = {name: files.enter_context(document_writer(folder / f"{name}.parquet")) for name in HELD_OUT}
        for found in without_repeats(part):
            log.remove(found.document, found.removals)
            if found.document.text and (side := split_of(found.group, shares)) in sides:
                sides[side].write(found.document)


def write_side(work: tuple[SidePart, Mapping[str, float], int], folder: Path) -> None:
    """Write the documents of a side that occur there at least ``number`` times; sources not in the mapping occur once.

    A repeated document has the number after its id; one that does not occur at all is removed by the first number.
    """
    part, repeats, number = work
    with removal_log(folder) as log, document_writer(folder / KEPT) as kept:
        for document in part.documents():
            often = repeats.get(document.source, 1.0)
            times = copies(document.id, often)
            if number == 1 and times == 0:
                value = f"0 copies; of its source, {often:.3f} of each document"
                log.remove(document, [Removal(document.id, None, document.source, "mixture", value, document.text)])
            if number <= times:
                again = document if number == 1 else replace(document, id=f"{document.id} (copy {number})")
                log.keep(again, part.side)
                kept.write(again)
