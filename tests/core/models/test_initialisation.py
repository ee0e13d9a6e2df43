"""Every paper's model starts as the paper says: which deviation, which zeros, which ones."""

import math
import re

import pytest
import torch

from plm_core.configs.architectures import MODELS, BERTConfig
from plm_core.models.bert import BERT, embed_ids

LAYERS, D = 5, 128
RESIDUAL = 0.02 / math.sqrt(2 * LAYERS)
# The first pattern that matches a parameter's name says its deviation; "one" and "zero" are exact.
RULES = {
    "gpt": [
        (r"norm.*weight", "one"),
        (r"bias", "zero"),
        (r"positions", 0.01),
        (r"(attention\.out|down)\.weight", RESIDUAL),
        (r"(tokens|qkv|up)", 0.02),
    ],
    "llama": [(r"norm.*weight", "one"), (r"(attention\.out|down)\.weight", RESIDUAL), (r"weight", 0.02)],
    "bert": [(r"norm.*weight", "one"), (r"bias", "zero"), (r"weight", 0.02)],
    "modernbert": [
        (r"norm.*weight", "one"),
        (r"bias", "zero"),
        (r"(attention\.out|down|transform)\.weight", RESIDUAL),
        (r"weight", 0.02),
    ],
    "electra": [(r"norm.*weight", "one"), (r"bias", "zero"), (r"weight", 0.02)],
    "transformer": [(r"norm.*weight", "one"), (r"bias", "zero"), (r"tokens", D**-0.5), (r"weight", "glorot")],
    "t5": [
        (r"norm.*weight", "one"),
        (r"tokens", 1.0),
        (r"distances", D**-0.5),
        (r"\.q\.weight", (D * D // 4) ** -0.5),
        (r"down\.weight", (4 * D) ** -0.5),
        (r"weight", D**-0.5),
    ],
    "xlnet": [
        (r"norm.*weight", "one"),
        (r"(content|distance|segment)_bias", 0.02),
        (r"bias", "zero"),
        (r"(weight|attention\.segments)", 0.02),
        (r"unknown", 0.02),
    ],
}


@pytest.mark.parametrize(
    ("overrides", "factor"), [({}, 1.0), ({"initializer_range": 0.07}, 3.5)], ids=["published", "own"]
)
@pytest.mark.parametrize("paper", RULES)
def test_the_initial_deviations_are_those_of_the_paper(paper, overrides, factor):
    torch.manual_seed(0)
    entry = MODELS[paper]
    model = entry.model(entry.config(vocab_size=997, context=199, layers=LAYERS, heads=4, width=D, **overrides))
    drawn, used = {}, set()
    for name, parameter in model.named_parameters():
        pattern, rule = next(line for line in RULES[paper] if re.search(line[0], name))
        used.add(pattern)
        if rule in ("one", "zero"):
            assert (parameter == (1 if rule == "one" else 0)).all(), name
        elif rule == "glorot":
            bound = math.sqrt(6 / sum(parameter.shape))
            assert bound * 0.99 < parameter.abs().max() <= bound, name
        else:
            factor = 1 if paper in ("t5", "transformer") else factor  # the sizes decide
            rule *= 1 if name == "unknown" else factor
            drawn.setdefault(pattern, []).append(parameter.detach().flatten() / rule)
            n = parameter.numel()
            assert abs(parameter.std() / rule - 1) < 5 / math.sqrt(2 * n), name
            assert abs(parameter.mean() / rule) < 5 / math.sqrt(n), name
    assert used == {pattern for pattern, _ in RULES[paper]}
    for values in map(torch.cat, drawn.values()):
        # A normal distribution: its fourth moment, and tails that a truncated one has not.
        assert (values**4).mean() == pytest.approx(3, rel=0.1)
        assert values.abs().max() > 3 or values.numel() < 999


def test_the_first_gpt_starts_with_one_deviation():
    torch.manual_seed(0)
    model = MODELS["gpt"].model(MODELS["gpt"].config(997, 199, LAYERS, D, heads=4, norm="post"))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert abs(parameter.std() / 0.02 - 1) < 5 / math.sqrt(2 * parameter.numel()), name


@pytest.mark.parametrize("paper", RULES)
@torch.no_grad()
def test_dropout_is_random_in_training_and_absent_in_evaluation(paper):
    entry = MODELS[paper]
    model = entry.model(entry.config(vocab_size=97, context=7, layers=1, heads=2, width=16, dropout=0.5))
    ids = torch.randint(97, (3, 7))
    for training in (True, False):
        model.train(training)
        assert torch.equal(model.encode(ids), model.encode(ids)) == (not training)


@pytest.mark.parametrize("paper", ["gpt", "llama", "bert", "modernbert", "xlnet"])
@torch.no_grad()
def test_untrained_model_loss_is_log_of_vocab_size(paper):
    torch.manual_seed(0)
    entry = MODELS[paper]
    model = entry.model(entry.config(vocab_size=997, context=37, layers=2, heads=2, width=32, dropout=0.0)).eval()
    tokens = torch.randint(997, (13, 37))
    logits = model.logits(model.encode(tokens))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(997, (13 * 37,)))
    assert loss.item() == pytest.approx(math.log(997), abs=0.05)


@pytest.mark.parametrize(("heads", "width"), [(4, 128), (1, 32), (6, 192)])
@torch.no_grad()
def test_heads_that_look_at_neighbours_find_them_in_every_document(heads, width):
    """Half of the heads, each at one distance; the others read all alike."""
    torch.manual_seed(0)
    config = BERTConfig(997, 128, 2, width, heads=heads, dropout=0.0, initial_attention="neighbours")
    model = BERT(config).eval()
    ids = torch.randint(997, (3, 100))
    documents = (torch.arange(100) >= 41).long().expand(3, 100)
    x, mask = embed_ids(model, ids, documents=documents)
    q, k, _ = model.blocks[0].attention.qkv(x).view(3, 100, 3, heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT * (width / heads) ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    assert (weights[:, (heads + 1) // 2 :] < 0.2).all()
    for head, distance in zip(range((heads + 1) // 2), (-1, 1, -2, 2, -3, 3), strict=False):
        near = weights[:, head].diagonal(distance, -2, -1)
        has_one = mask[:, 0].diagonal(distance, -2, -1)
        assert near[has_one].mean() > 0.7, distance
        assert (near > 0.5)[has_one].float().mean() > 0.9, distance


def test_neighbour_heads_change_only_positions_queries_and_keys():
    drawn, begun = {}, {}
    for how, weights in [("drawn", drawn), ("neighbours", begun)]:
        torch.manual_seed(0)
        weights |= BERT(BERTConfig(97, 13, 2, 16, heads=2, initial_attention=how)).state_dict()
    qkv = {f"blocks.{block}.attention.qkv.weight" for block in range(2)}
    others = [*range(8, 16), *range(24, 48)]  # queries and keys of the second head, all values
    assert {name for name in drawn if not torch.equal(drawn[name], begun[name])} == {"positions.weight", *qkv}
    assert all(torch.equal(drawn[name][others], begun[name][others]) for name in qkv)


def test_a_head_of_odd_size_cannot_look_at_a_neighbour():
    with pytest.raises(ValueError, match=r"initial_attention: heads of 7 \(21 / 3\); expected an even size"):
        BERTConfig(97, 13, 2, 21, heads=3, initial_attention="neighbours")
