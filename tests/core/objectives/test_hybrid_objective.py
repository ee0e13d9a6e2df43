"""One decoder trained by both: which rows are masked, what is predicted where, and that the loss is both losses."""

import numpy as np
import pytest
import torch
from compilers import pretend
from hypothesis import given
from hypothesis import strategies as st
from papers import SIZES, loud, make

from plm_core.models import gpt, llama
from plm_core.objectives.causal import Causal
from plm_core.objectives.hybrid import Hybrid, mask_next, spread_evenly
from plm_core.objectives.objective import IGNORED
from plm_core.text.tokenizers import EOS, MASK, PAD, PIECES

EACH = pytest.mark.parametrize("name", ["gpt_bert", "gpt_bert_documents"])
VOCABULARY = SIZES["vocab_size"]


@given(first=st.integers(0, 10**9), count=st.integers(0, 999), share=st.floats(0.001, 0.999))
def test_hybrid_masks_the_share_of_consecutive_rows(first, count, share):
    masked = spread_evenly(first + np.arange(count), share)
    assert masked.shape == (count,)
    assert abs(masked.sum() - share * count) < 1 + 1e-4


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_hybrid_share_holds_for_any_batch_size(store, rows):
    objective = Hybrid(masked_rows=0.6)
    batches = objective.batches(store, make("gpt_bert")[0].config, rows)
    masked = torch.cat([batches.at(3, step).bidirectional for step in range(40)])
    assert abs(int(masked.sum()) - 0.6 * len(masked)) < 1
    # A part of a batch, or the rows of a process, are consecutive rows too.
    for part in masked.split(5):
        assert abs(int(part.sum()) - 0.6 * len(part)) < 1
    held_out = torch.cat([batch.bidirectional for batch in batches.held_out(20)])
    assert int(held_out.sum()) == 12


def sources(store, name, rows=5, seed=3, step=1):
    """A batch of the objective, and the same rows as the causal objective has them."""
    model, objective = make(name)
    plain = Causal(packing=objective.packing)
    return tuple(source.batches(store, model.config, rows).at(seed, step) for source in (objective, plain))


@EACH
@pytest.mark.parametrize("rows", [1, 5])
def test_hybrid_target_is_the_next_token(store, name, rows):
    kinds = set()
    for step in range(12):
        batch, plain = sources(store, name, rows, step=step)
        for row in range(rows):
            inputs, targets = batch.inputs[row], batch.targets[row]
            if not batch.bidirectional[row]:
                assert torch.equal(inputs, plain.inputs[row])
                assert torch.equal(targets, plain.targets[row])
                continue
            predicted = (targets != IGNORED).nonzero().flatten()
            assert torch.equal(targets[predicted], plain.inputs[row, predicted + 1])
            assert torch.equal(targets[predicted], plain.targets[row, predicted])
            assert torch.equal(batch.documents[row, predicted], batch.documents[row, predicted + 1])
            assert not torch.isin(targets[predicted], torch.tensor([EOS, PAD])).any()
            touched = (inputs != plain.inputs[row]).nonzero().flatten()
            assert set(touched.tolist()) <= set((predicted + 1).tolist())
            selectable = (plain.inputs[row, 1:] >= len(PIECES)) & (batch.documents[row].diff() == 0)
            assert len(predicted) == max(1, round(0.3 * int(selectable.sum())))
        kinds |= set(batch.bidirectional.tolist())
    assert kinds == {False, True}


def test_hybrid_masked_token_changes_its_target_only():
    ids, documents = np.arange(7, 47), np.repeat([0, 1], 20)
    inputs, targets = mask_next(ids, documents, 0.4, VOCABULARY, np.random.default_rng(5))
    hidden = np.flatnonzero(inputs == MASK)
    assert len(hidden) > 9
    for place in hidden:
        changed = ids.copy()
        changed[place] = 99
        again, others = mask_next(changed, documents, 0.4, VOCABULARY, np.random.default_rng(5))
        assert (again == inputs).all()
        assert np.flatnonzero(others != targets).tolist() == [place - 1]
        assert others[place - 1] == 99


def all_see_all(q, k, v, attn_mask, causal, dropout):
    """Attention without any mask, by hand."""
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


def nats_by_hand(model, batch, row, monkeypatch):
    """The nats of each prediction of a row, each document read alone, by a causal reading or one in which all see
    all."""
    nats = []
    for document in batch.documents[row].unique():
        places = (batch.documents[row] == document).nonzero().flatten()
        with monkeypatch.context() as patch:
            if batch.bidirectional[row]:
                patch.setattr(gpt, "attend", all_see_all)
                patch.setattr(llama, "attend", all_see_all)
            logits = model.logits(model.read(batch.inputs[row : row + 1, places])[0]).log_softmax(-1)
        targets = batch.targets[row, places]
        nats += [-logits[i, target] for i, target in enumerate(targets.tolist()) if target != IGNORED]
    return torch.stack(nats)


@EACH
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("compiling", [False, True])
def test_hybrid_loss_is_the_mean_over_rows(store, monkeypatch, name, rows, compiling):
    model, objective = loud(name)
    # Then all logits are computed.
    pretend(monkeypatch, compiling)
    for step in (0, 1):
        batch = objective.batches(store, model.config, rows).at(3, step)
        loss = objective.loss(model, batch)
        means = [nats_by_hand(model, batch, row, monkeypatch).mean() for row in range(rows)]
        torch.testing.assert_close(loss.nll / loss.num_targets, torch.stack(means).mean(), rtol=1e-12, atol=1e-12)
        assert int(loss.num_targets) == int((batch.targets != IGNORED).sum())
        mine, theirs = (
            torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
            for value in (loss.nll / loss.num_targets, torch.stack(means).mean())
        )
        for left, right in zip(mine, theirs, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def test_hybrid_row_without_targets_counts_for_nothing(store):
    model, objective = make("gpt_bert")
    batches = objective.batches(store, model.config, 4)
    plain = batches.view.at(3, 0)
    plain.inputs[1] = EOS
    batch = batches._batch(plain, 7, 0)
    assert batch.bidirectional.tolist() == [False, True, False, True]
    counts = (batch.targets != IGNORED).sum(1)
    assert int(counts[1]) == 0
    weighted = (batch.weights * counts)[[0, 2, 3]]
    torch.testing.assert_close(weighted, weighted.sum().expand(3) / 3)
    assert float(weighted.sum()) == pytest.approx(int(batch.num_targets))
    assert float(objective.loss(model, batch).nll) > 0


def test_hybrid_refuses_incompatible_settings(store):
    config = make("gpt")[0].config
    with pytest.raises(ValueError, match=r"streams: true; expected false"):
        Hybrid(streams=True)
    with pytest.raises(ValueError, match=r"model\.context: 1; expected at least 2"):
        Hybrid().batches(store, type(config)(**SIZES | {"context": 1}), 5)
    memory = make("xlnet")[0].config
    with pytest.raises(ValueError, match=r"objective\.streams: False for a model with memory 11"):
        Hybrid().batches(store, memory, 5)


def test_hybrid_row_states_its_mode(store):
    model, objective = make("gpt_bert")
    batch = objective.batches(store, model.config, 4).at(3, 0)
    assert [objective.facts(batch, row) for row in (0, 1)] == [{"read_both_ways": False}, {"read_both_ways": True}]
    assert objective.mark(1, "word") is None
