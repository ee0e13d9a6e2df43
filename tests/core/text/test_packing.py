"""Documents in rows: nothing is lost, nothing is cut that need not be, and rows are as full as best-fit makes them."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.text.packing import Packed, best_fit
from plm_core.text.token_store import TokenStore, write_tokens
from plm_core.text.tokenizers import EOS, PAD

CAPACITIES = st.integers(1, 37)


@st.composite
def pieces_and_capacity(draw):
    capacity = draw(CAPACITIES)
    return np.asarray(draw(st.lists(st.integers(1, capacity), max_size=99)), dtype=np.int64), capacity


def textbook(sizes, capacity):
    """Best-fit decreasing, piece by piece: the sizes in each row."""
    rows = []
    for size in sorted(sizes.tolist(), reverse=True):
        fitting = [row for row in rows if sum(row) + size <= capacity]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return rows


@given(pieces_and_capacity())
def test_packing_matches_textbook_best_fit(given_):
    sizes, capacity = given_
    rows = best_fit(sizes, capacity)
    filled = np.bincount(rows, weights=sizes).astype(int) if len(sizes) else np.empty(0, int)
    assert sorted(filled) == sorted(map(sum, textbook(sizes, capacity)))
    assert set(rows) == set(range(len(filled)))
    assert (filled <= capacity).all()
    # What every any-fit rule has: no two rows could be one, so that more than half of the positions are used.
    if len(filled) > 1:
        assert sum(sorted(filled)[:2]) > capacity
        assert filled.sum() * 2 > capacity * len(filled)


@pytest.mark.parametrize("sizes", [[3, 0], [3, 8]])
def test_packing_refuses_empty_or_too_large_pieces(sizes):
    with pytest.raises(ValueError, match=r"expected from 1 to the capacity 7"):
        best_fit(np.asarray(sizes), 7)


def made(folder, lengths, shard_tokens=23):
    """A store whose documents have these numbers of tokens, EOS included; every token tells its place."""
    tokens = iter(range(7, 60_000))
    documents = ((f"d{i}", 1, np.asarray([next(tokens) for _ in range(n - 1)])) for i, n in enumerate(lengths))
    write_tokens(folder, documents, 60_000, "0f", shard_tokens)
    return TokenStore(folder)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=37),
    length=st.integers(3, 37),
    margin=st.integers(0, 1),
)
def test_packing_puts_every_token_in_one_row(lengths, length, margin):
    if margin and max(lengths) == 1:
        lengths = [*lengths, 2]
    with tempfile.TemporaryDirectory() as folder:
        store = made(Path(folder) / "store", lengths)
        packed = Packed(store, length, margin)
        pieces = packed.pieces(np.arange(len(packed)))
        tokens, numbers, padding = packed.laid_out(pieces, len(packed))
        stream = store.tokens(0, len(store))
        offsets = store.offsets.copy()
    assert sorted(tokens[tokens != PAD]) == sorted(stream[stream != EOS] if margin else stream)
    # Pieces lie in their rows without a gap, and padding is behind them.
    ends = pieces.position + pieces.length + margin
    begins = pieces.position - margin
    same_row = pieces.row[1:] == pieces.row[:-1]
    assert (begins[1:] == np.where(same_row, ends[:-1], 0)).all()
    assert begins[0] == 0
    assert ends.max() <= length
    for row in range(len(packed)):
        mine = np.flatnonzero(pieces.row == row)
        expected = np.repeat(np.arange(len(mine)), pieces.length[mine] + 2 * margin)
        assert numbers[row, : len(expected)].tolist() == expected.tolist()
        assert (numbers[row, len(expected) :] == len(mine)).all()
        assert padding[row].tolist() == [False] * len(expected) + [True] * (length - len(expected))
    # A piece is of one document, and documents are cut only where they are longer than a row.
    most, sizes = length - 2 * margin, np.diff(offsets) - margin
    document = offsets.searchsorted(pieces.start, side="right") - 1
    assert (pieces.start + pieces.length <= offsets[document + 1]).all()
    assert np.bincount(document, minlength=len(sizes)).tolist() == (-(-sizes // most)).tolist()
    assert pieces.first.tolist() == np.isin(pieces.start, offsets).tolist()
    assert packed.cut == pytest.approx(np.mean(sizes > most))
    assert packed.utilisation == pytest.approx(1 - padding.mean())


def test_packing_refuses_an_empty_store(tmp_path):
    with pytest.raises(UserError, match=r"none: holds no document with a token"):
        Packed(made(tmp_path / "none", []), 7)
    with pytest.raises(UserError, match=r"empty: holds no document with a token"):
        Packed(made(tmp_path / "empty", [1, 1]), 7, margin=1)
    assert len(Packed(made(tmp_path / "ends", [1, 1]), 7)) == 1
