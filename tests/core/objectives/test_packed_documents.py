"""Documents side by side in a row are computed as if each stood alone: logits, loss, gradients; and nothing leaks."""

import numpy as np
import pytest
import torch
from papers import PAPERS, SIZES, loud, make

from plm_core.models.blocks import document_positions
from plm_core.objectives.causal import Causal
from plm_core.objectives.masked import Masked
from plm_core.objectives.objective import IGNORED
from plm_core.text.token_store import TokenStore, write_tokens
from plm_core.text.tokenizers import CLS, EOS, MASK, PAD, SEP

LENGTHS = [1, 5, 29, 30, 99, 2, 7, 7, 13, 3, 61, 4, 28, 27, 8, 1, 11]
EACH = pytest.mark.parametrize(
    "name", ["gpt_documents", "llama_documents", "roberta_documents", "modernbert_documents"]
)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A store of short documents, shorter than a row and longer, in several shards."""
    draw = np.random.Generator(np.random.PCG64(5))
    folder = tmp_path_factory.mktemp("short") / "train"
    documents = ((f"d{i}", n, draw.integers(7, SIZES["vocab_size"], n - 1)) for i, n in enumerate(LENGTHS))
    write_tokens(folder, documents, SIZES["vocab_size"], "0f", shard_tokens=53)
    return TokenStore(folder)


def hidden_of(model, ids, documents=None):
    return model.read(ids, documents=documents) if hasattr(model, "read") else model(ids, documents=documents)


def documents_of(batch):
    """Each document of a batch: its row, where it begins and where it ends; padding is none."""
    for row, (numbers, ids) in enumerate(zip(batch.documents.tolist(), batch.inputs.tolist(), strict=True)):
        for number in sorted(set(numbers)):
            start, stop = numbers.index(number), len(numbers) - numbers[::-1].index(number)
            if ids[start] != PAD:
                yield row, start, stop


def nats_alone(model, batch, row, start, stop):
    """The loss of one document run by itself, by hand."""
    ids = batch.inputs[row : row + 1, start:stop]
    logits = model.logits(hidden_of(model, ids)[0]).log_softmax(-1)
    places, targets = batch.target_positions[row], batch.targets[row]
    mine = (targets != IGNORED) & (places >= start) & (places < stop)
    return -logits[places[mine] - start, targets[mine]].sum()


@EACH
def test_packed_documents_match_documents_one_by_one(short, name):
    model, objective = loud(name)
    batches = objective.batches(short, model.config, 4)
    several = 0
    for step in range(len(batches.view) // 4 + 1):
        batch = batches.at(3, step)
        parts = list(documents_of(batch))
        several += len(parts) > 4
        packed = model.logits(hidden_of(model, batch.inputs, batch.documents))
        for row, start, stop in parts:
            alone = model.logits(hidden_of(model, batch.inputs[row : row + 1, start:stop]))
            torch.testing.assert_close(packed[row, start:stop], alone[0], rtol=1e-12, atol=1e-12)
        loss = objective.loss(model, batch)
        expected = sum(nats_alone(model, batch, *part) for part in parts)
        torch.testing.assert_close(loss.nll, expected, rtol=1e-12, atol=1e-12)
        assert int(loss.num_targets) == int((batch.targets != IGNORED).sum())
        used = [p for p in model.parameters() if p.requires_grad]
        ours, theirs = (torch.autograd.grad(value, used, allow_unused=True) for value in (loss.nll, expected))
        for left, right in zip(ours, theirs, strict=True):
            assert (left is None) == (right is None)
            if left is not None:
                torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
    assert several > 1


def test_packed_epoch_predicts_each_token_once(short):
    model, objective = make("gpt_documents")
    batches = objective.batches(short, model.config, 1)
    predicted = []
    for step in range(len(batches.view)):
        batch = batches.at(3, step)
        for row, start, stop in documents_of(batch):
            inputs, targets = batch.inputs[row, start:stop], batch.targets[row, start:stop]
            assert torch.equal(inputs[1:], targets[:-1])
            assert EOS not in inputs[1:]
            predicted += targets.tolist()
        padding = batch.inputs == PAD
        assert (batch.targets[padding] == IGNORED).all()
        assert (batch.targets[~padding] != IGNORED).all()
    assert sorted(predicted) == sorted(short.tokens(0, len(short)).tolist())
    assert predicted.count(EOS) == len(LENGTHS)


def test_a_piece_begins_with_eos_or_with_the_last_token_of_the_piece_before(short):
    model, objective = make("gpt_documents")
    batches = objective.batches(short, model.config, 1)
    begun = 0
    for step in range(len(batches.view)):
        batch, (spans,) = batches.at(3, step), batches.spans(3, step)
        for (row, start, stop), span in zip(documents_of(batch), spans, strict=True):
            first = int(batch.inputs[row, start])
            begins = span.position == start + 1
            begun += begins
            assert first == (EOS if begins else int(short.tokens(span.start, span.start + 1)[0]))
            assert (span.start in short.offsets) if begins else (span.start not in short.offsets)
            assert span.stop - span.start == stop - start - begins
    assert begun == len(LENGTHS)


def test_packed_documents_are_framed_as_texts_alone(short):
    model, objective = make("roberta_documents")
    batches = objective.batches(short, model.config, 3)
    texts = []
    for step in range(len(batches.view) // 3):
        batch = batches.at(3, step)
        restored = batch.inputs.clone()
        for row in range(3):
            chosen = batch.targets[row] != IGNORED
            restored[row, batch.positions[row][chosen]] = batch.targets[row][chosen]
        assert not (restored == MASK).any()
        assert not (restored == EOS).any()
        assert torch.equal(batch.attention_mask, restored != PAD)
        for row, start, stop in documents_of(batch):
            ids = restored[row, start:stop].tolist()
            assert (ids[0], ids[-1], ids.count(CLS), ids.count(SEP)) == (CLS, SEP, 1, 1)
            texts.append(len(ids) - 2)
    most = model.config.context - 2
    assert max(texts) == most
    assert set(texts) <= {min(most, n - 1 - cut) for n in LENGTHS for cut in range(0, n, most)}


def test_packing_refuses_incompatible_settings(store):
    with pytest.raises(ValueError, match=r"packing: documents with next_sentence true; expected stream"):
        Masked(next_sentence=True, packing="documents")
    for memory, message in ((0, r"objective\.packing: documents"), (11, r"objective\.streams: False")):
        config = type(PAPERS["xlnet"][1])(**SIZES, memory=memory)
        with pytest.raises(ValueError, match=f"{message} for a model with memory {memory}"):
            Causal(packing="documents").batches(store, config, 5)


def test_packing_metrics_report_row_use(short):
    for name, margin in (("gpt_documents", 0), ("roberta_documents", 1)):
        model, objective = make(name)
        batches = objective.batches(short, model.config, 3)
        metrics = batches.metrics()
        most = model.config.context - 2 * margin
        assert metrics["packing_documents_cut"] == sum(n - margin > most for n in LENGTHS) / len(LENGTHS)
        held = torch.cat([part.inputs for part in batches.held_out(99)])
        assert len(held) == metrics["packing_rows"]
        assert metrics["packing_utilisation"] == pytest.approx(float((held != PAD).double().mean()))
    assert make("gpt")[1].batches(short, make("gpt")[0].config, 3).metrics() == {}


def test_packed_positions_restart_in_each_document():
    documents = torch.tensor([[0, 0, 0, 1, 2, 2], [3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 9]])
    assert document_positions(documents).tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5], [0] * 6]
