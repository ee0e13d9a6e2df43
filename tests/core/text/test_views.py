"""What a step reads is a function of (seed, step): every epoch visits every window once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.text.samplers import Pairs, Streams, Windows, draws, epoch_order, items_at, stream_seed
from plm_core.text.token_store import TokenStore, write_store
from plm_core.text.tokenizers import EOS

SEEDS = st.integers(0, 2**63 - 1)


@given(seed=SEEDS, batch=st.integers(1, 13), count=st.integers(1, 37), epochs=st.integers(1, 4))
def test_steps_read_epoch_after_epoch_each_item_once(seed, batch, count, epochs):
    steps = -(-epochs * count // batch)
    read = np.concatenate([items_at(seed, step, batch, count) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(read[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert len({epoch_order(*which, 99).tobytes() for which in ((1, 0), (1, 1), (2, 0))}) == 3


@given(seed=SEEDS, step=st.integers(0, 10**6), batch=st.integers(1, 13), count=st.integers(1, 99))
def test_any_step_is_read_without_those_before(seed, step, batch, count):
    epoch_order.cache_clear()
    alone = items_at(seed, step, batch, count)
    for before in range(max(0, step - 3), step):
        items_at(seed, before, batch, count)
    assert np.array_equal(items_at(seed, step, batch, count), alone)


@given(seed=SEEDS, step=st.integers(0, 99), ranks=st.integers(1, 7), rows=st.integers(1, 5))
def test_each_rank_can_read_its_slice_of_the_global_batch_alone(store, seed, step, ranks, rows):
    windows = Windows(store, 14, 13)
    whole = windows.rows_at(seed, step, ranks * rows)
    parts = [windows.rows_at(seed, step * ranks + rank, rows) for rank in range(ranks)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_named_streams_of_one_seed_are_independent():
    names = [("weights",), ("order",), ("dropout", 0, 1), ("dropout", 1, 0), ("dropout", 0), ("dropout", "0")]
    assert len({stream_seed(7, *name) for name in names}) == len(names)
    assert stream_seed(7, "order") != stream_seed(8, "order")
    assert all(0 <= stream_seed(7, "x", i) < 2**63 for i in range(99))


def test_windows_overlap_by_one_and_cover_the_stream(store):
    windows = Windows(store, 14, 13)
    stream = store.tokens(0, len(store))
    rows = windows.spread_rows(10**9)
    assert rows.shape == (len(windows), 14)
    assert np.array_equal(rows[1:, 0], rows[:-1, -1])
    targets = rows[:, 1:].flatten()
    assert np.array_equal(targets, stream[1 : 1 + len(targets)])
    assert len(stream) - 1 - len(targets) < 13


def test_epochs_cut_the_stream_at_other_places(store):
    """Or what stands in the first tokens of a row would be predicted from nearly nothing for ever."""
    windows = Windows(store, 14, 13)
    count = len(windows)
    starts = [windows.starts_at(5, epoch, count) for epoch in range(9)]
    assert sorted(starts[0]) == list(range(0, 13 * count, 13))
    firsts = [int(epoch.min()) for epoch in starts]
    assert len(set(firsts)) > 4
    assert max(firsts) < 13
    for first, epoch in zip(firsts, starts, strict=True):
        # The last row reads what is left of the stream.
        assert sorted(epoch) == [min(first + 13 * item, len(store) - 14) for item in range(count)]
    assert firsts[1:] != [windows.starts_at(6, epoch, count).min() for epoch in range(1, 9)]


@pytest.mark.parametrize("surplus", [1, 99])
def test_a_row_longer_than_the_data_is_refused_by_name(store, surplus):
    too_small = rf"train: holds {len(store)} tokens, fewer than the {len(store) + surplus} .* model\.context"
    with pytest.raises(UserError, match=too_small):
        Windows(store, len(store) + surplus, 1)
    with pytest.raises(UserError, match=too_small):
        Streams(store, 1, len(store) + surplus, 1)
    assert len(Windows(store, len(store), 13)) == 1
    assert Streams(store, 7, len(store), len(store) // 7).steps == 1


@given(
    seed=SEEDS, rows=st.integers(1, 7), advance=st.integers(1, 13), ahead=st.integers(0, 13), step=st.integers(0, 999)
)
def test_each_row_of_a_stream_continues_that_of_the_step_before(store, seed, rows, advance, ahead, step):
    streams = Streams(store, rows, advance + ahead, advance)
    now, later = streams.rows_at(seed, step), streams.rows_at(seed, step + 1)
    assert now.shape == (rows, advance + ahead)
    if not streams.begins(step + 1):
        assert np.array_equal(now[:, advance:], later[:, :ahead])
    assert np.array_equal(streams.rows_at(seed, step), now)


def test_stream_epoch_reads_the_whole_store(store):
    streams = Streams(store, 5, 13, 13)
    read = np.concatenate([streams.rows_at(3, step).flatten() for step in range(streams.steps)])
    assert len(store) - len(read) < 5 * 13 + 5
    counts = np.bincount(store.tokens(0, len(store)), minlength=307)
    assert (np.bincount(read, minlength=307) <= counts).all()
    assert [streams.begins(step) for step in (0, 1, streams.steps - 1, streams.steps)] == [True, False, False, True]
    assert not np.array_equal(streams.rows_at(3, 0), streams.rows_at(3, streams.steps))
    assert not np.array_equal(streams.rows_at(3, 0), streams.rows_at(4, 0))


@given(seed=SEEDS, item=st.integers(0, 10**6), length=st.integers(2, 99))
def test_a_pair_is_of_one_document_or_of_two(store, seed, item, length):
    pairs = Pairs(store, length)
    a, b, follows = pair(pairs, item % len(pairs), draws(seed, 0, 0))
    assert 2 <= len(a) + len(b) <= length
    assert len(a) >= 1
    assert len(b) >= 1
    assert EOS not in a
    assert EOS not in b
    texts = [document[:-1] for document in store.documents()]
    if follows:
        assert any(holds(text, np.concatenate((a, b))) for text in texts)
    else:
        of_a, of_b = ({i for i, text in enumerate(texts) if holds(text, part)} for part in (a, b))
        assert len(of_a | of_b) > 1
        assert of_a
        assert of_b


@given(seed=SEEDS, rows=st.integers(1, 7), step=st.integers(0, 999), length=st.integers(1, 99))
def test_the_spans_of_a_stream_are_its_rows(store, seed, rows, step, length):
    streams = Streams(store, rows, length, 13)
    for start, row in zip(streams.starts_at(seed, step).tolist(), streams.rows_at(seed, step), strict=True):
        spans = streams.spans(start, length, 5)
        assert [span.position for span in spans] == [5, 5 + spans[0].stop - spans[0].start][: len(spans)]
        assert np.array_equal(np.concatenate([store.tokens(a, b) for _, a, b in spans]), row)


def pair(pairs, item, draw):
    """The tokens of A and B, and whether B follows A."""
    a, b, follows = pairs.places(item, draw)
    return pairs.store.tokens(*a), pairs.store.tokens(*b), follows


def holds(text, part):
    """Whether a document contains these tokens in a row."""
    windows = np.lib.stride_tricks.sliding_window_view(text, min(len(part), len(text)))
    return len(part) <= len(text) and bool((windows == part).all(axis=1).any())


def test_the_items_of_pairs_cover_every_token_of_every_document_and_coins_are_fair(store):
    pairs = Pairs(store, 37)
    stream = store.tokens(0, len(store)).astype(np.uint16)
    seen, tosses, followed = stream == EOS, 0, 0
    for item in range(len(pairs)):
        follows, seed = False, 0
        while not follows:
            a, b, follows = pair(pairs, item, draws(seed, 0, item))
            seed, tosses, followed = seed + 1, tosses + 1, followed + follows
        span = np.concatenate((a, b)).astype(np.uint16).tobytes()
        place = stream.tobytes().find(span)
        while place % 2:
            place = stream.tobytes().find(span, place + 1)
        seen[place // 2 : (place + len(span)) // 2] = True
    assert seen.all()
    assert abs(followed - tosses / 2) < 4 * (tosses / 4) ** 0.5


@pytest.mark.parametrize(("shortest", "longest"), [(30, 120), (40, 250), (2, 30), (100, 900)])
def test_pair_label_is_told_by_text_alone(tmp_path, tokenizer, shortest, longest):
    """Not how long A and B are, nor whether they begin or end their documents: of each such description half do."""
    draw = np.random.default_rng(shortest)
    texts = [" ".join(["a"] * int(n)) for n in draw.integers(shortest, longest, 400)]
    write_store(tmp_path / "some", [(str(i), text) for i, text in enumerate(texts)], tokenizer)
    store = TokenStore(tmp_path / "some")
    pairs = Pairs(store, 125)
    begins, ends = {int(o) for o in store.offsets[:-1]}, {int(o) - 1 for o in store.offsets[1:]}
    descriptions = {True: [], False: []}
    cut_short = 0
    for step in range(6000):
        a, b, follows = pairs.places(step % len(pairs), draws(1, step, 0))
        assert b[0] not in begins
        of_a, of_b = (int(np.searchsorted(store.offsets, part[0], side="right")) - 1 for part in (a, b))
        assert (of_a == of_b) == follows
        # As long as the pair would be that goes on: but for a document longer than all others, if there is one.
        full = min(125, int(store.offsets[of_a + 1] - store.offsets[of_a]) - 1)
        cut_short += a[1] - a[0] + b[1] - b[0] < full
        descriptions[follows].append((a[0] in begins, b[1] in ends, a[1] - a[0], b[1] - b[0]))
    assert cut_short <= 3
    for column in range(4):
        means = [np.mean([row[column] for row in descriptions[follows]]) for follows in (True, False)]
        spread = np.std([row[column] for row in descriptions[True]]) / len(descriptions[True]) ** 0.5
        assert abs(means[0] - means[1]) <= 6 * spread, column
    # A table of A's and B's sizes and ends, learned from half of the pairs, tells nothing of the others.
    rows = [
        ((*row[:2], row[2] // 8, row[3] // 8), follows) for follows in descriptions for row in descriptions[follows]
    ]
    draw.shuffle(rows)
    learned = {}
    for row, follows in rows[:3000]:
        learned[row] = learned.get(row, 0) + (1 if follows else -1)
    right = sum((learned.get(row, 0) > 0) == follows for row, follows in rows[3000:])
    assert right / (len(rows) - 3000) < 0.55


def test_pair_takes_b_from_the_end_of_the_longest_other_document(tmp_path, tokenizer):
    write_store(tmp_path / "two", [("a", "word " * 90), ("b", "a few words"), ("c", "")], tokenizer)
    store = TokenStore(tmp_path / "two")
    pairs = Pairs(store, 40)
    places = [pairs.places(0, draws(1, step, 0))[1:] for step in range(99)]
    assert min(b for b, follows in places if not follows) == (store.offsets[1] + 1, store.offsets[2] - 1)
    assert {b[1] for b, follows in places if not follows} == {store.offsets[2] - 1}


def test_pairs_of_a_single_document_are_refused(tmp_path, tokenizer):
    write_store(tmp_path / "one", [("a", "some words of one document"), ("b", "")], tokenizer)
    with pytest.raises(UserError, match=r"one: next_sentence draws pairs from at least two documents .* found 1"):
        Pairs(TokenStore(tmp_path / "one"), 7)


@given(seed=SEEDS, step=st.integers(0, 10**9), row=st.integers(0, 10**6))
def test_the_draws_of_a_row_depend_on_its_seed_step_and_place_alone(seed, step, row):
    first = draws(seed, step, row).random(3)
    assert np.array_equal(draws(seed, step, row).random(3), first)
    for other in ((seed ^ 1, step, row), (seed, step + 1, row), (seed, step, row + 1)):
        assert not np.array_equal(draws(*other).random(3), first)
