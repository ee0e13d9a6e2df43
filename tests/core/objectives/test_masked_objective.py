"""The masked objective: which tokens are selected, what becomes of them, how rows are framed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from papers import make

from plm_core.objectives.masked import ELSEWHERE, FOLLOWS, Masked, mask, max_predictions
from plm_core.objectives.objective import IGNORED
from plm_core.text.samplers import draws, spread
from plm_core.text.tokenizers import CLS, MASK, PAD, PIECES, SEP, UNK

SPECIALS = len(PIECES)


@given(
    ids=st.lists(st.integers(0, 98).filter(lambda i: i != UNK), min_size=1, max_size=99).filter(
        lambda ids: max(ids) >= SPECIALS
    ),
    rate=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63),
)
def test_masking_share_is_exact_and_skips_special_tokens(ids, rate, seed):
    ids = np.array(ids)
    masked, positions, targets = mask(ids, rate, 99, draws(seed, 0, 0))
    ordinary = int((ids >= SPECIALS).sum())
    assert len(positions) == len(set(positions)) == max(1, round(rate * ordinary))
    assert (targets >= SPECIALS).all()
    assert np.array_equal(ids[positions], targets)
    changed = np.flatnonzero(masked != ids)
    assert set(changed) <= set(positions)
    assert all(token == MASK or token >= SPECIALS for token in masked[positions])


def test_masking_may_select_unknown_words():
    """UNK stands for text, and is selected like any token, as in the released code; no other special token is."""
    ids = np.array([CLS, UNK, SEP, UNK, PAD])
    _, positions, targets = mask(ids, 0.99, 99, draws(3, 0, 0))
    assert positions.tolist() == [1, 3]
    assert targets.tolist() == [UNK, UNK]


def test_masking_is_80_10_10():
    ids = np.arange(SPECIALS, 9999)
    fates = np.zeros(3)
    strangers = []
    for row in range(20):
        masked, positions, targets = mask(ids, 0.15, 9999, draws(1, 2, row))
        now = masked[positions]
        fates += [(now == MASK).sum(), ((now != MASK) & (now != targets)).sum(), (now == targets).sum()]
        strangers += list(now[(now != MASK) & (now != targets)])
    n = fates.sum()
    assert n == 20 * round(0.15 * len(ids))
    for count, share in zip(fates, (0.8, 0.1, 0.1), strict=True):
        assert abs(count - share * n) < 4 * (share * (1 - share) * n) ** 0.5
    # Strangers are spread over the whole vocabulary: the mean of a uniform draw, within four deviations.
    assert abs(np.mean(strangers) - (SPECIALS + 9998) / 2) < 4 * 9992 / 12**0.5 / len(strangers) ** 0.5


def test_masking_selects_positions_uniformly():
    ids = np.arange(SPECIALS, SPECIALS + 37)
    counts = np.zeros(37)
    for step in range(4000):
        counts[mask(ids, 0.15, 99, draws(0, step, 0))[1]] += 1
    share = round(0.15 * 37) / 37
    assert (abs(counts - 4000 * share) < 4.5 * (4000 * share * (1 - share)) ** 0.5).all()


@pytest.mark.parametrize("next_sentence", [True, False])
def test_rows_are_framed_and_padded_and_targets_are_restored(store, next_sentence):
    model, _ = make("bert")
    batches = Masked(next_sentence=next_sentence).batches(store, model.config, 7)
    stream = store.tokens(0, len(store))
    for step in range(5):
        batch = batches.at(3, step)
        assert next_sentence or batch.attention_mask.all(), "only pairs have padding: other losses give no mask"
        for row in range(7):
            kept = batch.inputs[row][batch.attention_mask[row]].numpy().copy()
            assert (batch.inputs[row][~batch.attention_mask[row]] == PAD).all()
            assert batch.attention_mask[row].int().diff().le(0).all(), "padding stands behind"
            chosen = batch.targets[row] != IGNORED
            kept[batch.positions[row][chosen]] = batch.targets[row][chosen]
            assert (kept[0], kept[-1]) == (CLS, SEP)
            assert set(np.flatnonzero(kept == MASK)) == set()
            middle = int(np.flatnonzero(kept == SEP)[0])
            segments = batch.segments[row][batch.attention_mask[row]]
            assert segments.tolist() == [0] * (middle + 1) + [1] * (len(kept) - middle - 1)
            assert (kept == SEP).sum() == 1 + next_sentence
            assert occurs(stream, kept[1:middle])
            if next_sentence:
                together = occurs(stream, kept[(kept != CLS) & (kept != SEP)])
                assert int(batch.following[row]) == (FOLLOWS if together else ELSEWHERE)
            else:
                assert int(batch.following[row]) == IGNORED


def occurs(stream, text):
    """Whether these tokens stand together in the stream."""
    return (np.lib.stride_tricks.sliding_window_view(stream, len(text)) == text).all(axis=1).any()


def test_next_sentence_pairs_follow_half_of_the_time(store):
    model, objective = make("bert")
    batches = objective.batches(store, model.config, 7)
    followed = torch.cat([batches.at(3, step).following for step in range(150)]) == FOLLOWS
    assert abs(followed.double().mean() - 0.5) < 4 * 0.5 / len(followed) ** 0.5


def test_only_masked_positions_reach_the_output_layer_and_a_pair_counts_as_its_masks(store, monkeypatch):
    model, objective = make("bert")
    batch = objective.batches(store, model.config, 7).at(3, 0)
    # A short row: some of its targets are none.
    batch.targets[2, 1:] = IGNORED
    seen, output = [], model.output
    monkeypatch.setattr(model, "output", lambda hidden: seen.append(hidden.shape) or output(hidden))
    with torch.no_grad():
        loss = objective.loss(model, batch)
        hidden = model(batch.inputs, batch.segments, batch.attention_mask)
        tokens = output(hidden[torch.arange(7)[:, None], batch.positions]).logits().log_softmax(-1)
        pairs = model.next_sentence(model.pool(hidden)).log_softmax(-1)
    assert seen == [(*batch.targets.shape, model.config.width)]
    expected = 0.0
    for row, column in (batch.targets != IGNORED).nonzero().tolist():
        expected -= float(tokens[row, column, batch.targets[row, column]]) + float(pairs[row, batch.following[row]])
    assert float(loss.nll) == pytest.approx(expected, rel=1e-12)
    assert int(loss.num_targets) == int((batch.targets != IGNORED).sum())


def test_masks_are_dynamic(store):
    model, _ = make("roberta")
    batches = Masked(packing="documents").batches(store, model.config, 7)  # a later epoch of `stream` has other rows
    steps = len(batches.view) * 2 // 7 + 2
    seen = {}
    for step in range(steps):
        batch = batches.at(3, step)
        for row in range(7):
            text = batch.inputs[row].clone()
            text[batch.positions[row]] = batch.targets[row]
            seen.setdefault(tuple(text.tolist()), set()).add(tuple(batch.positions[row].tolist()))
    twice = [masks for masks in seen.values() if len(masks) > 1]
    assert len(seen) == len(batches.view)
    assert len(twice) > 0.9 * len(seen)


def test_validation_reads_windows_spread_over_the_whole_text(store):
    model, objective = make("roberta")
    batches = objective.batches(store, model.config, 7)
    rows = [row for batch in batches.held_out(23) for row in batch.inputs.tolist()]
    length = objective.text_length(model.config.context)
    starts = spread(23, len(batches.view)) * length
    assert len(rows) == 23
    for row, start in zip(rows, starts, strict=True):
        text = store.tokens(start, start + length).tolist()
        assert sum(a != b for a, b in zip(row[1:-1], text, strict=True)) <= max_predictions(objective.rate, length)


def test_masked_objective_refuses_too_short_context(store):
    model, _ = make("bert", context=4)
    with pytest.raises(ValueError, match=r"model\.context: 4 leaves 1 tokens of text per row"):
        Masked(next_sentence=True).batches(store, model.config, 5)
