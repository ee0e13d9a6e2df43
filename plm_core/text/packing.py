"""Best-fit packing of documents into rows of one length. Used by the objectives for ``packing: documents``.

Ding et al. 2024, "Fewer Truncations Improve Language Modeling", section 3: documents longer than a row are cut into
pieces of its length, and each piece, longest first, goes into the row with the least room that still holds it (best-fit
decreasing). The rows depend only on the documents' lengths: no token is read.

Shapes: D documents, P pieces, R rows, B rows of a batch.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plm_core.config import UserError
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import PAD


def best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """The row ``[P]`` of each piece, by best-fit decreasing; rows are numbered from 0 as they are opened.

    Pieces of one size are placed together. After one of them is in a row, no row that fits has less room, so the next
    goes there too until it is full: a row with room for m takes m. Rows with equal room are interchangeable. So each
    iteration of the inner loop uses up the rows of one room or the pieces of one size: at most min(P, capacity^2 / 2)
    iterations, which move O(P) in total.

    Raises:
        ValueError: a piece is smaller than 1 or larger than ``capacity``.
    """
    if len(sizes) and not 1 <= sizes.min() <= sizes.max() <= capacity:
        raise ValueError(f"sizes: from {sizes.min()} to {sizes.max()}; expected from 1 to the capacity {capacity}")
    order = np.argsort(-sizes, kind="stable")
    counts = np.bincount(sizes, minlength=capacity + 1)
    row_of = np.empty(len(sizes), dtype=np.int64)
    free: list[list[np.ndarray]] = [[] for _ in range(capacity + 1)]  # rows by their room
    opened = first = 0
    for size in map(int, np.flatnonzero(counts)[::-1]):
        stop = first + int(counts[size])
        rooms = [room for room in range(size, capacity) if free[room]]
        for room in [*rooms, capacity]:
            per_row = room // size
            while first < stop and (free[room] or room == capacity):
                wanted = -(-(stop - first) // per_row)
                if room == capacity:
                    rows = np.arange(opened, opened + wanted)
                    opened += wanted
                else:
                    rows = free[room].pop()
                    if len(rows) > wanted:
                        free[room].append(rows[wanted:])
                    rows = rows[:wanted]
                taken = min(stop - first, per_row * len(rows))
                row_of[order[first : first + taken]] = np.repeat(rows, per_row)[:taken]
                first += taken
                last = taken - per_row * (len(rows) - 1)
                for part, pieces in ((rows[:-1], per_row), (rows[-1:], last)):
                    if len(part):
                        free[room - pieces * size].append(part)
    return row_of


class Pieces(NamedTuple):
    """The places of tokens in the rows of a batch, ordered by row, then position."""

    row: np.ndarray
    """The row of the batch, ``[P]``."""
    position: np.ndarray
    """The position of the piece's first token in the row, ``[P]``."""
    start: np.ndarray
    """Where it begins in the store's stream, ``[P]``."""
    length: np.ndarray
    """The number of its tokens, ``[P]``."""
    first: np.ndarray
    """Whether it is the beginning of its document, ``[P]``."""


class _Table(NamedTuple):
    """The pieces of row 0, of row 1, ..., ``[P]``; see ``Pieces``."""

    starts: np.ndarray
    lengths: np.ndarray
    positions: np.ndarray
    firsts: np.ndarray
    begins: np.ndarray
    """The first piece of each row, ``[R + 1]``."""
    taken: int
    """Positions that hold a token, margins included."""
    cut: int
    """Documents in more than one piece."""


@dataclass(frozen=True)
class Packed:
    """The documents of a store in rows of at most ``length`` positions: each token is in exactly one row.

    The rows are the same in every epoch; their order is not.
    """

    store: TokenStore
    length: int
    margin: int = 0
    """Positions reserved for special tokens before and after each piece; with any, EOS is in no piece."""

    def __post_init__(self) -> None:
        if not len(self):
            raise UserError(f"{self.store.folder}: holds no document with a token; expected text to pack into rows")

    def __len__(self) -> int:
        return len(self._table.begins) - 1

    @property
    def utilisation(self) -> float:
        """The share of the rows' positions that hold a token, special ones included."""
        return float(self._table.taken / (len(self) * self.length))

    @property
    def cut(self) -> float:
        """The share of documents that are in more than one piece."""
        return float(self._table.cut / (len(self.store.offsets) - 1))

    def metrics(self) -> dict[str, float]:
        return {"packing_rows": len(self), "packing_utilisation": self.utilisation, "packing_documents_cut": self.cut}

    def pieces(self, items: np.ndarray) -> Pieces:
        """The pieces in the rows ``[B]`` with these numbers."""
        table = self._table
        firsts = table.begins[items]
        counts = table.begins[items + 1] - firsts
        row = np.repeat(np.arange(len(items)), counts)
        chosen = (firsts - counts.cumsum() + counts)[row] + np.arange(len(row))
        length = table.lengths[chosen].astype(np.int64)
        return Pieces(row, table.positions[chosen].astype(np.int64), table.starts[chosen], length, table.firsts[chosen])

    def laid_out(self, pieces: Pieces, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lay the pieces out in their ``rows``.

        Returns:
            the tokens ``[B, n]``, with PAD elsewhere and in margins; the number of each position's piece, including
            margins, counted along the row, with padding as one more; and whether a position is padding.
        """
        row, position, start, length, _ = pieces
        tokens = np.full((rows, self.length), PAD)
        marks = np.zeros((rows, self.length + 1), dtype=np.int64)
        places = np.repeat(row * self.length + position - length.cumsum() + length, length)
        tokens.reshape(-1)[places + np.arange(len(places))] = self.store.spans(start, length)
        marks[row, position - self.margin] = marks[row, position + length + self.margin] = 1
        numbers = marks.cumsum(axis=1)[:, :-1] - 1
        return tokens, numbers, numbers == np.bincount(row, minlength=rows)[:, None]

    @functools.cached_property
    def _table(self) -> _Table:
        offsets = self.store.offsets
        margin = self.margin
        most = self.length - 2 * margin
        sizes = np.diff(offsets) - (margin > 0)
        counts = -(-sizes // most)
        document = np.repeat(np.arange(len(sizes)), counts)
        within = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
        starts = offsets[document] + within
        lengths = np.minimum(most, sizes[document] - within).astype(np.int32)
        row_of = best_fit(lengths + np.int32(2 * margin), self.length)
        taken = int(lengths.sum(dtype=np.int64)) + 2 * margin * len(lengths)
        cut = int((counts > 1).sum())
        # In a row, pieces are in the order of the stream.
        order = np.argsort(row_of, kind="stable")
        starts = starts[order]
        lengths = lengths[order]
        counts = np.bincount(row_of)
        begins = np.concatenate(([0], counts.cumsum()))
        ends = (lengths + np.int64(2 * margin)).cumsum()
        before = np.repeat(np.concatenate(([0], ends))[begins[:-1]], counts)
        positions = (ends - lengths - margin - before).astype(np.int32)
        return _Table(starts, lengths, positions, within[order] == 0, begins, taken, cut)
