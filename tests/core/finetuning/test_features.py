"""A model as features: its layers come out, it stays as it is, and tags of words are predicted together."""

import itertools
import random

import pytest
import torch
from papers import PAPERS, loud, make

from plm_core.finetuning.classifier import Classifier, collate, example_loss, predict
from plm_core.finetuning.features import Features, TagChain, layer_states
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.finetune_config import FeaturesConfig
from plm_core.finetuning.input_formats import Written, input_format_of
from plm_core.objectives import OBJECTIVES
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
