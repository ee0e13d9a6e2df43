"""A model as features: its layers come out, it stays as it is, and tags of words are predicted together."""

import itertools
import random

import pytest
import torch
from papers import PAPERS, loud, make

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import GlueTask, iob2
from plm_core.evaluation import evaluate_modules
from plm_core.finetuning import linear_baselines
from plm_core.finetuning.classifier import Classifier, collate, example_loss, predict
from plm_core.finetuning.features import Features, TagChain, layer_states
from plm_core.finetuning.featurize import InputRow, encoded
from plm_core.finetuning.finetune_config import FeaturesConfig
from plm_core.finetuning.input_formats import Written, input_format_of
from plm_core.finetuning.task_heads import example_answers
from plm_core.models.elmo import ELMo, ELMoConfig
from plm_core.objectives import OBJECTIVES
from plm_core.text.samplers import items_at
from plm_core.text.tokenizers import BOS, EOS
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

NAMES = {kind: name for name, kind in OBJECTIVES.items()}
SMALL = FeaturesConfig(["elmo"], width=11, dropout=0.0)


def format_of(objective, model):
    return input_format_of(NAMES[type(objective)], vars(model.config))


@pytest.mark.parametrize("name", PAPERS)
def test_the_states_of_all_layers_come_out(name):
    """The last is what the model computes, but for a last norm; and no state depends on padding."""
    model, objective = make(name)
    model.eval()
    ids = torch.randint(7, 307, (3, 13), generator=torch.Generator().manual_seed(1))
    lengths, segments = torch.tensor([13, 5, 8]), torch.zeros_like(ids)
    read = format_of(objective, model)
    states = layer_states(model, read, ids, segments, lengths)
    assert states.shape == (3, 3, 13, 24)
    last = getattr(model, "norm", None) if name.startswith(("gpt", "llama", "modernbert")) else None
    last = getattr(model, "encoder_norm", last)
    expected = read.states(model, ids, segments, lengths)
    torch.testing.assert_close(last(states[-1]) if last else states[-1], expected)
    alone = layer_states(model, read, ids[1:2, :5], segments[1:2, :5], lengths[1:2])
    torch.testing.assert_close(states[:, 1, :5], alone[:, 0])


def test_a_chain_is_a_distribution_over_all_sequences_of_tags():
    torch.manual_seed(0)
    chain, scores = TagChain(3).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    for parameter in chain.parameters():
        torch.nn.init.normal_(parameter)
    kept = torch.tensor([[True] * 4, [True, True, False, False]])
    for row, length in enumerate((4, 2)):
        chances = {}
        for tags in itertools.product(range(3), repeat=length):
            score = chain.first[tags[0]] + chain.last[tags[-1]]
            score = score + sum(scores[row, place, tag] for place, tag in enumerate(tags))
            score = score + sum(chain.after[a, b] for a, b in itertools.pairwise(tags))
            chances[tags] = score.item()
        norm = torch.tensor([*chances.values()], dtype=torch.float64).logsumexp(0)
        for tags, score in chances.items():
            padded = torch.tensor([[0] * 4] * 2)
            padded[row, :length] = torch.tensor(tags)
            assert chain.log_likelihood(scores, padded, kept)[row].item() == pytest.approx(
                score - norm.item(), rel=1e-12
            )
        assert tuple(chain.best(scores, kept)[row, :length].tolist()) == max(chances, key=chances.get)


def rows(kind, count, seed=3):
    """Rows whose words are tagged by the row's first token; or of one class, by all tokens."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        ids = [draw.randrange(7, 37) for _ in range(draw.randrange(4, 12))]
        if kind == "classification":
            made.append(InputRow([Written([7 + 3 * (i % 2) + ids[0] % 3 for i in ids], [0] * len(ids))], ids[0] % 3))
        else:
            tags = [ids[0] % 3] * (len(ids) - 1)
            made.append(InputRow([Written(ids, [0] * len(ids))], tags, range(1, len(ids))))
    return made


def classifier(kind, seed=1):
    backbone, objective = loud("elmo")
    torch.manual_seed(seed)
    features = Features(SMALL, backbone.config.layers, backbone.config.width)
    model = Classifier(backbone.float(), format_of(objective, backbone), kind, 3, 0.0, features=features)
    model.standardize(rows(kind, 40))
    return model


@pytest.mark.parametrize("kind", ["token_classification", "classification"])
def test_only_what_is_on_top_learns_and_a_checkpoint_holds_it(device, tmp_path, kind):
    model, some = classifier(kind), rows(kind, 40)
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    falling = itertools.count(0.0, -1.0)  # so that the last weights are kept
    config = LoopConfig(seed=1, steps=150, batch=8, optimizer=OptimizerConfig(2e-2, 5))
    reports = list(
        train(
            model, example_loss, lambda step: collate(some[step % 5 * 8 : step % 5 * 8 + 8], kind=model.kind),
            lambda _: Validation(next(falling)), config, device, Snapshots(tmp_path),
        )
    )  # fmt: skip
    assert reports[-1].loss < 0.05 < 0.4 < reports[0].loss
    assert all(torch.equal(before[name], tensor) for name, tensor in model.backbone.state_dict().items())
    assert model.features.mix.abs().max() > 0
    other = classifier(kind, seed=2)
    first = predict(model, some, 8, torch.device("cpu"))
    assert predict(other, some, 8, torch.device("cpu")).loss != pytest.approx(first.loss)
    other.load_state_dict(
        {name: t for name, t in model.state_dict().items() if not name.startswith("backbone.")}, False
    )
    again = predict(other, some[::-1], 7, torch.device("cpu"))
    assert again.loss == pytest.approx(first.loss, rel=1e-5)
    if kind == "token_classification":
        assert again.answers[::-1] == first.answers
        assert all(0 < p <= 1 for p in first.confidences)


TASK = GlueTask("names", "token_classification", "", iob2(["PER", "LOC"]), ("entity_f1",), "entity_f1")
CUES = {"PER": ("king", "senator"), "LOC": ("river", "village")}
FILLERS = ("the", "very", "old", "and", "famous", "so", "often", "quite", "rather", "well")


def named(count, seed, syllables):
    """Sentences with a name of one word or two; whose name it is, is told three words before or behind it."""
    draw = random.Random(seed)
    some = []
    for number in range(count):
        kind = draw.choice(["PER", "LOC"])
        name = ["".join(draw.choices(syllables, k=2)).title() for _ in range(draw.randint(1, 2))]
        before, between, behind = (draw.choices(FILLERS, k=draw.randint(*size)) for size in ((0, 2), (2, 2), (1, 2)))
        words, tags = [*name, *behind], [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1), *["O"] * len(behind)]
        cue = [draw.choice(CUES[kind])]
        words, tags = [*before, *cue, *between, *words], ["O"] * (len(before) + 1 + len(between)) + tags
        if draw.random() < 0.5:
            words, tags = words[::-1], tags[::-1]
            place = next(i for i, tag in enumerate(tags) if tag != "O")
            tags[place : place + len(name)] = [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1)]
        labels = tuple(TASK.labels.index(tag) for tag in tags)
        some.append(Example(str(number), " ".join(words), None, 0, tags=labels))
    return some


def tagged_by_features(backbone, tokenizer, objective, training, test, device, folder, steps=250):
    """The tags of the test examples by a biLSTM and a chain over a frozen model."""
    torch.manual_seed(1)
    read = input_format_of(objective)
    features = Features(FeaturesConfig([], width=64, dropout=0.1), backbone.config.layers, backbone.config.width)
    model = Classifier(backbone, read, TASK.kind, len(TASK.labels), 0.1, features=features)
    rows, queries = (encoded(some, TASK, read, tokenizer, backbone.config.context) for some in (training, test))
    model.standardize(rows.encoded)
    config = LoopConfig(seed=1, steps=steps, batch=16, optimizer=OptimizerConfig(1e-2, 20), report_every=50)

    falling = itertools.count(0.0, -1.0)  # so that the last weights are kept

    def batch_at(step):
        return collate([rows.encoded[i] for i in items_at(1, step, 16, len(rows.encoded))], kind=model.kind)

    list(train(model, example_loss, batch_at, lambda _: Validation(next(falling)), config, device, Snapshots(folder)))
    return example_answers(TASK, queries, predict(model, queries.encoded, 32, device.device), tokenizer).answers


@pytest.mark.slow
def test_features_find_names_by_words_that_a_linear_tagger_does_not_see(tokenizer, device, tmp_path):
    """The names of the test are not in the training examples, and the words that tell their kind are too far away for a
    tagger that sees two words on either side."""
    training, test = (
        named(600, 1, ("bar", "kel", "mor", "tan", "lu")),
        named(300, 2, ("dos", "win", "gar", "pel", "ru")),
    )
    gold = [[TASK.labels[tag] for tag in example.tags] for example in test]

    def score(answers):
        return evaluate_modules.scores(["entity_f1"], answers, gold, TASK.labels)["entity_f1"]

    linear, _ = linear_baselines.tags(TASK, training, training, test)
    torch.manual_seed(1)
    sizes = {"filters": ((1, 16), (3, 32)), "cells": 64, "dropout": 0.0}
    elmo = ELMo(ELMoConfig(tokenizer.vocab_size, 99, 2, 64, **sizes))
    elmo.spell([tokenizer.letters(token) for token in range(tokenizer.vocab_size)], ends=(BOS, EOS))
    ours = tagged_by_features(elmo, tokenizer, "bidirectional", training, test, device, tmp_path, steps=500)
    assert score(linear) < 0.65
    assert score(ours) > score(linear) + 0.2
