"""Models that answer with texts: what they learn is the likelihood of the text, and beam search answers by it."""

import itertools
import math

import pytest
import torch
from papers import SIZES

from plm_core.configs.architectures import MODELS
from plm_core.finetuning.classifier import collate, example_loss, predict
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.finetune_config import TextRecipe
from plm_core.finetuning.input_formats import Written
from plm_core.finetuning.task_heads import TEXTS
from plm_core.finetuning.text_writer import AFTER_PROMPT, FROM_SOURCE, TextModel
from plm_core.text.samplers import draws
from plm_core.text.tokenizers import BOS, EOS, PIECES, SEP
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import train
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig, OptimizerConfig

WRITERS = {"t5": FROM_SOURCE, "transformer": FROM_SOURCE, "gpt": AFTER_PROMPT, "llama": AFTER_PROMPT}
V = SIZES["vocab_size"]
STEPS = 900


def framed(name, source):
    return [BOS, *source, SEP] if WRITERS[name] is AFTER_PROMPT else [*source, EOS]


def row(name, source, text):
    return InputRow([Written(framed(name, source), [0] * (len(source) + 2))], [*text, EOS])


def new_model(name, most=9, **sizes):
    torch.manual_seed(3)
    entry = MODELS[name]
    backbone = entry.model(entry.config(**(SIZES | sizes)))
    return TextModel(backbone, WRITERS[name], "translation", TextRecipe(label_smoothing=0.0), most, V).double().eval()


def rows_of(name, count=5, seed=1):
    random = draws(seed, 0, 0)
    words = [random.integers(len(PIECES), V, random.integers(1, 9)).tolist() for _ in range(2 * count)]
    return [row(name, *pair) for pair in zip(words[::2], words[1::2], strict=True)]


@torch.no_grad()
def nats_of(name, model, source, text):
    """-log p of a text that ends, read without padding and without a cache."""
    ids = torch.tensor([framed(name, source)])
    target = torch.tensor([[*text, EOS]])
    backbone = model.backbone
    if WRITERS[name] is FROM_SOURCE:
        hidden = backbone.decode(torch.tensor([[0, *text]]), backbone.encode(ids))
    else:
        hidden = backbone.read(torch.cat((ids, target[:, :-1]), 1))[:, ids.shape[1] - 1 :]
    log_p = backbone.logits(hidden).log_softmax(-1)
    return -float(log_p.gather(-1, target[..., None]).sum())


@pytest.mark.parametrize("name", WRITERS)
def test_loss_is_the_likelihood_of_the_texts_alone(name):
    model = new_model(name)
    rows = rows_of(name)
    expected = [nats_of(name, model, r.sequences[0].ids[(name in ("gpt", "llama")) : -1], r.label[:-1]) for r in rows]
    batch = collate(rows, kind=TEXTS)
    assert float(model.loss(batch)) == pytest.approx(sum(expected))
    assert int(batch.num_targets) == sum(len(r.label) for r in rows)
    assert model(batch, answers=False)[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", WRITERS)
def test_an_answer_has_the_probability_that_the_model_gives_it(name, device):
    """Written token by token with a cache, for several sources at once; the same without other sources in the batch."""
    model = new_model(name, most=6)
    rows = rows_of(name, 4)
    answers = predict(model, rows, 4, device.device)
    for r, text, probability in zip(rows, answers.answers, answers.confidences, strict=True):
        source = r.sequences[0].ids[(name in ("gpt", "llama")) : -1]
        assert len(text) <= 6
        assert not {*text} & {*range(len(PIECES))}
        if len(text) < 6:  # it has ended; special tokens cannot be written, so it is at least as likely
            assert probability >= math.exp(-nats_of(name, model, source, text)) * (1 - 1e-9)
        alone = predict(model, [r], 1, device.device)
        assert alone.answers[0] == text
        assert alone.confidences[0] == pytest.approx(probability)


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("name", ["transformer", "t5", "gpt"])
def test_texts_are_reversed_without_a_mistake(name, device, tmp_path):
    def reversals(step, count):
        random = draws(7, step, 0)
        sources = [random.integers(len(PIECES), len(PIECES) + 9, random.integers(2, 7)).tolist() for _ in range(count)]
        return [row(name, source, source[::-1]) for source in sources]

    model = new_model(name, width=48, heads=4).float()
    optimizer = OptimizerConfig(5e-3, 100, name="muon", weight_decay=0.0, final_fraction=0.0)
    config = LoopConfig(seed=1, steps=STEPS, batch=64, optimizer=optimizer, report_every=100)
    falling = itertools.count(0.0, -1.0)  # so that the last weights are kept
    training = train(
        model,
        example_loss,
        lambda step: collate(reversals(step, 64), kind=TEXTS),
        lambda _: Validation(next(falling)),
        config,
        device,
        Snapshots(tmp_path),
    )
    list(training)
    held_out = reversals(10**6, 100)
    assert predict(model, held_out, 50, device.device).answers == [r.label[:-1] for r in held_out]
