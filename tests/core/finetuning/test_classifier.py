"""The classifier reads an example as its model was trained to read, whatever padding follows, and learns."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plm_core.finetuning.classifier import Classifier, collate, draw_anew, example_loss, predict
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.input_formats import Written, input_format_of
from plm_core.finetuning.task_heads import ExampleBatch
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.modernbert import ModernBERT, ModernBERTConfig
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.text.tokenizers import BOS, CLS, PAD, SEP

EACH = pytest.mark.parametrize("paper", ["gpt", "llama", "bert", "modernbert", "xlnet", "transformer_xl"])


def row(ids, label, segments=None):
    """An example of one sequence."""
    return InputRow([Written(ids, segments or [0] * len(ids))], label)


def rows(count, seed=0, longest=13):
    """Rows of different lengths and segments."""
    draw = random.Random(seed)
    lengths = [draw.randint(2, longest) for _ in range(count)]
    return [
        row([draw.randrange(37) for _ in range(n)], draw.randrange(3), [0] * (n // 2) + [1] * (n - n // 2))
        for n in lengths
    ]


@pytest.fixture
def make_classifier(make_gpt):
    """Makes the classifier of a paper."""

    def make(paper, dtype=torch.float64, kind="classification", auxiliary=0.0, **sizes):
        torch.manual_seed(5)
        shape = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "width": 24, "dropout": 0.0}
        objective = {"bert": "masked", "modernbert": "masked", "xlnet": "permutation"}.get(paper, "causal")
        if paper == "gpt":
            backbone = make_gpt(**sizes)
        elif paper == "modernbert":
            backbone = ModernBERT(ModernBERTConfig(**(shape | sizes), window=6, global_every=2))
        elif paper == "llama":
            backbone = Llama(LlamaConfig(**(shape | sizes), kv_heads=1))
        elif paper == "bert":
            backbone = BERT(BERTConfig(**(shape | sizes)))
        else:
            backbone = XLNet(XLNetConfig(**(shape | sizes), memory=7))
        return Classifier(backbone, input_format_of(objective), kind, 3, sizes.get("dropout", 0.0), auxiliary).to(dtype)

    return make


@given(a=st.text(max_size=40), b=st.text(max_size=40), context=st.integers(4, 37))
def test_a_pair_is_framed_as_each_paper_does_and_its_longer_text_is_cut_first(tokenizer, a, b, context):
    whole_a, whole_b = tokenizer.encode(a), tokenizer.encode(b)
    for objective, before, after, segment_after in [
        ("causal", [BOS], [CLS], [0]),
        ("masked", [CLS], [SEP], [1]),
        ("permutation", [], [SEP, CLS], [1, 2]),
    ]:
        ids, segments = input_format_of(objective).write(whole_a, whole_b, context)
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
    batch = collate([row([BOS, 9, CLS], 2), row([BOS, 9, 13, 99, CLS], 0, [0, 0, 1, 1, 1])])
    assert batch.inputs.tolist() == [[[BOS, 9, CLS, PAD, PAD]], [[BOS, 9, 13, 99, CLS]]]
    assert batch.segments.tolist() == [[[0, 0, 0, 0, 0]], [[0, 0, 1, 1, 1]]]
    assert (batch.lengths.tolist(), batch.targets.tolist(), int(batch.num_targets)) == ([[3], [5]], [2, 0], 2)
    halves = list(batch.split(2))
    assert [half.lengths.tolist() for half in halves] == [[[3]], [[5]]]
    assert all(type(half) is ExampleBatch for half in halves)


def test_batch_is_padded_to_the_next_allowed_length():
    widths = [collate([row([9] * n, 0)], 90).inputs.shape[-1] for n in range(1, 91)]
    assert sorted(set(widths)) == [8, 12, 16, 24, 32, 48, 64, 90]
    assert all(width >= n for n, width in enumerate(widths, start=1))
    assert [widths[n - 1] for n in (1, 8, 9, 12, 13, 49, 65)] == [8, 8, 12, 12, 16, 64, 90]


@EACH
def test_prediction_uses_no_dropout(make_classifier, device, paper):
    model = make_classifier(paper, dropout=0.5).train()
    some = rows(13)
    first, second = (predict(model, some, 5, device.device) for _ in range(2))
    assert (first.answers, first.loss) == (second.answers, second.loss)


@EACH
def test_initial_head_loss_is_log_of_the_number_of_classes(make_classifier, paper):
    model = make_classifier(paper)
    loss = example_loss(model, collate(rows(99)))
    assert (loss.nll / loss.num_targets).item() == pytest.approx(1.0986, abs=0.1)
    assert all((layer.bias == 0).all() for layer in model.head if isinstance(layer, torch.nn.Linear))


@EACH
def test_regression_loss_is_squared_error(make_classifier, device, paper):
    model, some = make_classifier(paper, kind="regression").eval(), rows(13)
    some = [row._replace(label=row.label / 7) for row in some]
    predicted = predict(model, some, 5, device.device)
    outputs = model(collate(some))
    assert outputs.shape == (13, 1)
    assert predicted.answers == pytest.approx(outputs[:, 0].tolist(), rel=1e-12)
    errors = [(answer - row.label) ** 2 for answer, row in zip(predicted.answers, some, strict=True)]
    assert predicted.loss == pytest.approx(sum(errors) / 13, rel=1e-6)
    loss = example_loss(model, collate(some))
    assert (loss.nll / loss.num_targets).item() == pytest.approx(predicted.loss, rel=1e-6)
    assert all(math.isnan(confidence) for confidence in predicted.confidences)


def test_pair_in_both_orders_is_swapped(make_classifier):
    """Radford et al. 2018, section 3.3: both orders are processed, and their states added before the linear layer."""
    model = make_classifier("gpt").eval()
    first, second = Written([BOS, 9, SEP, 7, 8, CLS], [0] * 6), Written([BOS, 7, 8, SEP, 9, CLS], [0] * 6)
    both, reverse = model(collate([InputRow([first, second], 0)])), model(collate([InputRow([second, first], 0)]))
    torch.testing.assert_close(both, reverse, rtol=1e-12, atol=1e-12)
    bias = model.head[-1].bias
    apart = sum(model(collate([InputRow([sequence], 0)])) - bias for sequence in (first, second))
    torch.testing.assert_close(both, apart + bias, rtol=1e-12, atol=1e-12)


def test_reinitialization_is_limited_to_unread_embeddings(make_gpt):
    model = make_gpt()
    with torch.no_grad():
        model.tokens.weight[[1, 4, 5]] = model.tokens.weight[9].clone()  # what the softmax makes of them
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    draw_anew(model, (1, 4, 5))
    after = model.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"tokens.weight"}
    rows = after["tokens.weight"]
    assert (rows != before["tokens.weight"]).any(1).nonzero().flatten().tolist() == [1, 4, 5]
    assert rows[[1, 4, 5]].corrcoef().triu(1).abs().max() < 0.9
    assert float(rows[[1, 4, 5]].std()) == pytest.approx(model.config.initializer_range, rel=0.5)
