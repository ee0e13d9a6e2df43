"""The classifier reads an example as its model was trained to read, whatever padding follows, and learns."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plm_core.finetuning.classifier import Classifier, ExampleBatch, Row, classification_loss, collate, predict
from plm_core.finetuning.examples import Example
from plm_core.finetuning.layouts import LAYOUTS
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.text.special import BOS, CLS, PAD, SEP
from plm_core.text.views import items_at
from plm_core.training.config import LoopConfig
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots

EACH = pytest.mark.parametrize("paper", ["gpt", "bert", "xlnet", "transformer_xl"])


def rows(count, seed=0, longest=13):
    """Rows of different lengths and segments."""
    draw = random.Random(seed)
    lengths = [draw.randint(2, longest) for _ in range(count)]
    return [
        Row([draw.randrange(37) for _ in range(n)], [0] * (n // 2) + [1] * (n - n // 2), draw.randrange(3))
        for n in lengths
    ]


@pytest.fixture
def make_classifier(make_gpt):
    """Makes the classifier of a paper."""

    def make(paper, dtype=torch.float64, **sizes):
        torch.manual_seed(5)
        shape = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "width": 24, "dropout": 0.0}
        objective = {"bert": "masked", "xlnet": "permutation"}.get(paper, "causal")
        if paper == "gpt":
            backbone = make_gpt(**sizes)
        elif paper == "bert":
            backbone = BERT(BERTConfig(**(shape | sizes)))
        else:
            backbone = XLNet(XLNetConfig(**(shape | sizes), memory=7))
        return Classifier(backbone, LAYOUTS[objective], 3, sizes.get("dropout", 0.0)).to(dtype)

    return make


@given(text=st.text(max_size=40), context=st.integers(3, 37))
def test_a_text_is_framed_as_each_paper_does_within_the_context(tokenizer, text, context):
    whole = tokenizer.encode(text)[: context - 2]
    example = Example("x", text, None, 0)
    assert LAYOUTS["causal"].write(example, tokenizer, context)[0] == [BOS, *whole, CLS]
    assert LAYOUTS["masked"].write(example, tokenizer, context)[0] == [CLS, *whole, SEP]
    ids, segments = LAYOUTS["permutation"].write(example, tokenizer, context)
    assert ids == [*whole, SEP, CLS]
    assert segments == [0] * (len(whole) + 1) + [2]


@given(a=st.text(max_size=40), b=st.text(max_size=40), context=st.integers(4, 37))
def test_a_pair_is_framed_as_each_paper_does_and_its_longer_text_is_cut_first(tokenizer, a, b, context):
    whole_a, whole_b = tokenizer.encode(a), tokenizer.encode(b)
    for objective, before, after, segment_after in [
        ("causal", [BOS], [CLS], [0]),
        ("masked", [CLS], [SEP], [1]),
        ("permutation", [], [SEP, CLS], [1, 2]),
    ]:
        ids, segments = LAYOUTS[objective].write(Example("x", a, b, 0), tokenizer, context)
        middle = ids.index(SEP)
        kept_a, kept_b = ids[len(before) : middle], ids[middle + 1 : len(ids) - len(after)]
        assert ids == [*before, *kept_a, SEP, *kept_b, *after]
        second = 0 if objective == "causal" else 1
        assert segments == [0] * (middle + 1) + [second] * len(kept_b) + segment_after
        assert (kept_a, kept_b) == (whole_a[: len(kept_a)], whole_b[: len(kept_b)])
        if (kept_a, kept_b) != (whole_a, whole_b):
            assert len(ids) == context
        cut_a, cut_b = len(kept_a) < len(whole_a), len(kept_b) < len(whole_b)
        if cut_a and cut_b:
            assert abs(len(kept_a) - len(kept_b)) <= 1
        elif cut_a:
            assert len(kept_a) >= len(whole_b) - 1
        elif cut_b:
            assert len(kept_b) >= len(whole_a) - 1


def test_a_batch_is_padded_behind_its_rows():
    batch = collate([Row([BOS, 9, CLS], [0, 0, 0], 2), Row([BOS, 9, 13, 99, CLS], [0, 0, 1, 1, 1], 0)])
    assert batch.inputs.tolist() == [[BOS, 9, CLS, PAD, PAD], [BOS, 9, 13, 99, CLS]]
    assert batch.segments.tolist() == [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]
    assert (batch.lengths.tolist(), batch.targets.tolist(), int(batch.count)) == ([3, 5], [2, 0], 2)
    halves = list(batch.split(2))
    assert [half.lengths.tolist() for half in halves] == [[3], [5]]
    assert all(type(half) is ExampleBatch for half in halves)


@EACH
@torch.no_grad()
def test_padding_and_neighbours_change_no_logit(make_classifier, paper):
    classifier, some = make_classifier(paper).eval(), rows(13)
    together = classifier(collate(some))
    for i, row in enumerate(some):
        torch.testing.assert_close(classifier(collate([row]))[0], together[i], rtol=1e-12, atol=1e-12)
        padded = collate([row, Row([1] * 13, [0] * 13, 0)])
        garbage = padded.inputs.clone()
        garbage[0, len(row.ids) :] = 36
        other = ExampleBatch(garbage, padded.targets, padded.segments, padded.lengths)
        assert torch.equal(classifier(other)[0], classifier(padded)[0])


@EACH
@torch.no_grad()
def test_predictions_come_in_the_order_of_the_rows_whatever_the_batch(make_classifier, device, paper):
    classifier, some = make_classifier(paper).eval(), rows(37)
    for parameter in classifier.parameters():
        torch.nn.init.normal_(parameter)
    classifier.head[-1].bias -= torch.cat([classifier(collate([row])) for row in some]).mean(0)  # no class wins all
    logits = torch.cat([classifier(collate([row])) for row in some])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([row.label for row in some])).item()
    assert len(set(logits.argmax(-1).tolist())) > 1
    for batch in (1, 5, 37, 99):
        predictions, nats = predict(classifier, some, batch, device.device)
        assert predictions == logits.argmax(-1).tolist()
        assert nats == pytest.approx(expected, rel=1e-12)


@EACH
def test_prediction_draws_no_dropout(make_classifier, device, paper):
    model = make_classifier(paper, dropout=0.5).train()
    some = rows(13)
    assert predict(model, some, 5, device.device) == predict(model, some, 5, device.device)


@EACH
def test_the_head_begins_small_and_the_loss_near_the_logarithm_of_the_classes(make_classifier, paper):
    model = make_classifier(paper)
    loss = classification_loss(model, collate(rows(99)))
    assert (loss.nats / loss.count).item() == pytest.approx(1.0986, abs=0.1)
    assert all((layer.bias == 0).all() for layer in model.head if isinstance(layer, torch.nn.Linear))


@EACH
def test_a_separable_task_is_learned(make_classifier, device, tmp_path, paper):
    """The class is which of three tokens stands somewhere in the row."""
    draw = random.Random(1)

    def row():
        label = draw.randrange(3)
        ids = [draw.randrange(10, 37) for _ in range(draw.randint(1, 9))]
        ids.insert(draw.randrange(len(ids) + 1), 7 + label)
        return Row([BOS, *ids, CLS], [0] * (len(ids) + 2), label)

    training, test = [row() for _ in range(299)], [row() for _ in range(99)]
    model = make_classifier(paper, dtype=torch.float32)
    for parameter in model.backbone.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)  # these layers are narrow
    config = LoopConfig(seed=1, steps=150, batch=32, optimizer=OptimizerConfig(3e-3, 10), valid_every=50)

    def batch_at(step):
        return collate([training[i] for i in items_at(1, step, 32, len(training))])

    reports = train(
        model,
        classification_loss,
        batch_at,
        lambda _: predict(model, training, 32, device.device)[1],
        config,
        device,
        Snapshots(tmp_path),
    )
    first, *_, last = list(reports)
    assert last.loss < first.loss / 5
    predictions, _ = predict(model, test, 13, device.device)
    assert sum(p == row.label for p, row in zip(predictions, test, strict=True)) > 94
