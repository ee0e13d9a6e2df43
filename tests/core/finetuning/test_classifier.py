"""The classifier reads the extract token, whatever padding follows it, and learns what can be learned."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plm_core.finetuning.classifier import Classifier, ExampleBatch, classification_loss, collate, encode, predict
from plm_core.finetuning.examples import Example
from plm_core.text.special import BOS, CLS, PAD, SEP
from plm_core.text.views import items_at
from plm_core.training.loop import LoopConfig, train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots


def rows(count, seed=0, longest=13):
    """Rows of different lengths."""
    draw = random.Random(seed)
    return [([draw.randrange(37) for _ in range(draw.randint(2, longest))], draw.randrange(3)) for _ in range(count)]


@pytest.fixture
def classifier(make_gpt):
    torch.manual_seed(5)
    return Classifier(make_gpt(), 3, dropout=0.0).double().eval()


@given(text=st.text(max_size=40), context=st.integers(3, 37))
def test_a_text_becomes_start_text_extract_within_the_context(tokenizer, text, context):
    ids, whole = encode(Example("x", text, None, 0), tokenizer, context), tokenizer.encode(text)
    assert ids == [BOS, *whole[: context - 2], CLS]
    assert len(ids) <= context


@given(a=st.text(max_size=40), b=st.text(max_size=40), context=st.integers(3, 37))
def test_a_pair_loses_the_end_of_its_longer_text_first(tokenizer, a, b, context):
    ids = encode(Example("x", a, b, 0), tokenizer, context)
    whole_a, whole_b = tokenizer.encode(a), tokenizer.encode(b)
    middle = ids.index(SEP)
    kept_a, kept_b = ids[1:middle], ids[middle + 1 : -1]
    assert (ids[0], ids[-1], len(ids) <= context) == (BOS, CLS, True)
    assert kept_a == whole_a[: len(kept_a)]
    assert kept_b == whole_b[: len(kept_b)]
    if (kept_a, kept_b) != (whole_a, whole_b):
        assert len(ids) == context
    cut_a, cut_b = len(kept_a) < len(whole_a), len(kept_b) < len(whole_b)
    if cut_a and cut_b:
        assert abs(len(kept_a) - len(kept_b)) <= 1
    elif cut_a:
        assert len(kept_a) >= len(whole_b) - 1
    elif cut_b:
        assert len(kept_b) >= len(whole_a) - 1


def test_a_batch_is_padded_behind_the_extract_token():
    batch = collate([([BOS, 9, CLS], 2), ([BOS, 9, 13, 99, CLS], 0)])
    assert batch.inputs.tolist() == [[BOS, 9, CLS, PAD, PAD], [BOS, 9, 13, 99, CLS]]
    assert (batch.last.tolist(), batch.targets.tolist(), int(batch.count)) == ([2, 4], [2, 0], 2)
    halves = list(batch.split(2))
    assert [half.last.tolist() for half in halves] == [[2], [4]]
    assert all(type(half) is ExampleBatch for half in halves)


@torch.no_grad()
def test_padding_and_neighbours_change_no_logit(classifier):
    some = rows(13)
    together = classifier(collate(some))
    for i, row in enumerate(some):
        torch.testing.assert_close(classifier(collate([row]))[0], together[i], rtol=1e-12, atol=1e-12)
        padded = collate([row, ([1] * 13, 0)])
        garbage = padded.inputs.clone()
        garbage[0, len(row[0]) :] = 36
        other = ExampleBatch(garbage, padded.targets, padded.last)
        assert torch.equal(classifier(other)[0], classifier(padded)[0])


@torch.no_grad()
def test_predictions_come_in_the_order_of_the_rows_whatever_the_batch(classifier, device):
    torch.nn.init.normal_(classifier.head.weight)
    some = rows(37)
    logits = torch.cat([classifier(collate([row])) for row in some])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([c for _, c in some])).item()
    assert len(set(logits.argmax(-1).tolist())) > 1
    for batch in (1, 5, 37, 99):
        predictions, nats = predict(classifier, some, batch, device.device)
        assert predictions == logits.argmax(-1).tolist()
        assert nats == pytest.approx(expected, rel=1e-12)


def test_prediction_draws_no_dropout(make_gpt, device):
    model = Classifier(make_gpt(dropout=0.5), 3, dropout=0.5).double().train()
    some = rows(13)
    assert predict(model, some, 5, device.device) == predict(model, some, 5, device.device)


def test_the_head_begins_small_and_the_loss_near_the_logarithm_of_the_classes(make_gpt):
    model = Classifier(make_gpt(), 3, dropout=0.0).double()
    loss = classification_loss(model, collate(rows(99)))
    assert (loss.nats / loss.count).item() == pytest.approx(1.0986, abs=0.1)
    assert (model.head.bias == 0).all()


def test_a_separable_task_is_learned(make_gpt, device, tmp_path):
    """The class is which of three tokens stands somewhere in the row."""
    draw = random.Random(1)

    def row():
        label = draw.randrange(3)
        ids = [draw.randrange(10, 37) for _ in range(draw.randint(1, 9))]
        ids.insert(draw.randrange(len(ids) + 1), 7 + label)
        return [BOS, *ids, CLS], label

    training, test = [row() for _ in range(299)], [row() for _ in range(99)]
    torch.manual_seed(0)
    model = Classifier(make_gpt(dtype=torch.float32), 3, dropout=0.0)
    config = LoopConfig(seed=1, steps=100, batch=32, optimizer=OptimizerConfig(1e-2, 10), valid_every=50)

    def batch_at(step):
        return collate([training[i] for i in items_at(1, step, 32, len(training))])

    reports = train(
        model,
        classification_loss,
        batch_at,
        lambda m: predict(m, training, 32, device.device)[1],
        config,
        device,
        Snapshots(tmp_path),
    )
    first, *_, last = list(reports)
    assert last.loss < first.loss / 5
    predictions, _ = predict(model, test, 13, device.device)
    assert sum(p == label for p, (_, label) in zip(predictions, test, strict=True)) > 94
