"""Each model computes what its reference in transformers computes: logits, loss and every parameter's gradient.

`pytest -s tests/core/models/test_parity.py` prints the largest difference found, per paper and dtype.
"""

from collections import defaultdict

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

from plm_core.generation.decoding import KVCache
from plm_core.interchange import FAMILIES
from plm_core.models.xlnet import Memory, distance_encodings
from plm_core.objectives.loss import IGNORED

B, T, V, M = 5, 11, 99, 4
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
BOTH = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
REFERENCES = {
    "gpt": (GPT2Config, GPT2LMHeadModel),
    "bert": (BertConfig, BertForPreTraining),
    "xlnet": (XLNetConfig, XLNetLMHeadModel),
}


def draws(seed):
    return torch.Generator().manual_seed(seed)


def ids(seed=0, rows=B, length=T, below=V):
    return torch.randint(below, (rows, length), generator=draws(seed))


@pytest.fixture(scope="module")
def maxima():
    """The largest relative difference by (paper, what, dtype), printed when all are known."""
    found = defaultdict(float)
    yield found
    for (paper, what, dtype), value in sorted(found.items()):
        print(f"\n{paper:6} {what:9} {dtype:8} {value:.1e}", end="")
    print()


@pytest.fixture
def agree(maxima, record_property):
    """Asserts that two tensors agree, relative to the largest number of the reference, and keeps the maximum."""

    @torch.no_grad()
    def check(paper, what, ours, theirs, dtype):
        assert ours.shape == theirs.shape, what
        assert theirs.abs().max() > 0, what
        difference = float((ours - theirs).abs().max() / theirs.abs().max())
        key = (paper, what.split(" ")[0], str(dtype).removeprefix("torch."))
        maxima[key] = max(maxima[key], difference)
        record_property("-".join(key), difference)
        assert difference < TOLERANCE[dtype], what

    return check


@pytest.fixture
def pair(make):
    """Our model and the reference with the same random weights."""

    def made(paper, dtype, **sizes):
        ours = make(paper, seed=7, dtype=dtype, **sizes)
        config, reference = REFERENCES[paper]
        family = FAMILIES[paper]
        theirs = reference(config(**family.their_config(vars(ours.config)), attn_implementation="eager"))
        weights = family.to_theirs(ours.state_dict(), ours.config.layers, ours.config.heads)
        lacking, unknown = theirs.to(dtype).load_state_dict(weights, strict=False)
        assert set(lacking) <= set(family.tied)
        assert not unknown
        theirs.tie_weights()
        if paper == "xlnet":

            def encodings(q_len, k_len, bsz=None, device=None):
                return distance_encodings(k_len, q_len, ours.unknown)[:, None].expand(-1, bsz, -1)

            theirs.transformer.relative_positional_encoding = encodings
        return ours, theirs.eval()

    return made


def agree_on_gradients(paper, ours, theirs, dtype, agree, but=()):
    """Every parameter's gradient; ``but`` names those that the input does not reach, in both models."""
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in theirs.named_parameters()}
    expected = FAMILIES[paper].to_ours(gradients, ours.config.layers, "the reference")
    assert expected.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        if name.endswith(but):
            assert parameter.grad is None
            assert not expected[name].any()
        else:
            agree(paper, f"gradient {name}", parameter.grad, expected[name], dtype)


@BOTH
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_gpt_is_gpt2(pair, agree, dtype, padding):
    ours, theirs = pair("gpt", dtype)
    lengths = torch.tensor([11, 7, 3, 9, 5])[:, None]
    places = torch.arange(T).expand(B, T)
    attention_mask = {"none": places >= 0, "right": places < lengths, "left": places >= T - lengths}[padding]
    labels = torch.where(attention_mask, ids(), IGNORED)
    expected = theirs(
        ids(),
        attention_mask=attention_mask.long(),
        position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0),
        labels=labels,
    )
    # A label whose predecessor is padding is predicted from what sees nothing: drop it, though theirs counts it.
    predicted = attention_mask[:, :-1] & attention_mask[:, 1:]
    logits = ours.logits(ours(ids(), None if padding == "none" else attention_mask))
    reference = F.cross_entropy(expected.logits[:, :-1][predicted], ids()[:, 1:][predicted])
    loss = F.cross_entropy(logits[:, :-1][predicted], ids()[:, 1:][predicted])
    agree("gpt", "logits", logits[attention_mask], expected.logits[attention_mask], dtype)
    agree("gpt", "loss", loss, reference, dtype)
    if padding != "left":
        assert abs(loss - expected.loss) < 1e-5  # theirs is computed in float32 whatever the logits are
    loss.backward()
    reference.backward()
    agree_on_gradients("gpt", ours, theirs, dtype, agree)


@BOTH
def test_gpt_continues_a_text_as_gpt2_does(pair, agree, dtype):
    ours, theirs = pair("gpt", dtype)
    attention_mask = torch.arange(T) >= torch.tensor([0, 2, 5, 0, 1])[:, None]
    places = (attention_mask.cumsum(1) - 1).clamp(min=0)
    first = theirs(
        ids()[:, :7], attention_mask=attention_mask[:, :7].long(), position_ids=places[:, :7], use_cache=True
    )
    second = theirs(
        ids()[:, 7:],
        attention_mask=attention_mask.long(),
        position_ids=places[:, 7:],
        past_key_values=first.past_key_values,
    )
    cache = KVCache(ours)
    hidden = cache.read(ids()[:, :7], attention_mask[:, :7])
    agree("gpt", "logits", ours.logits(hidden)[attention_mask[:, :7]], first.logits[attention_mask[:, :7]], dtype)
    agree("gpt", "logits", ours.logits(cache.read(ids()[:, 7:])), second.logits, dtype)


@BOTH
def test_bert_is_bert_for_pretraining(pair, agree, dtype):
    ours, theirs = pair("bert", dtype)
    segments, follows = ids(1, below=2), ids(2, rows=1, length=B, below=2)[0]
    attention_mask = torch.arange(T) < torch.tensor([11, 7, 3, 9, 5])[:, None]
    masked = (torch.rand(B, T, generator=draws(3)) < 0.4) & attention_mask
    expected = theirs(
        ids(),
        attention_mask=attention_mask.long(),
        token_type_ids=segments,
        labels=torch.where(masked, ids(4), IGNORED),
        next_sentence_label=follows,
    )
    hidden = ours(ids(), segments, attention_mask)
    next_sentence = ours.next_sentence(ours.pool(hidden))
    loss = F.cross_entropy(ours.logits(hidden[masked]), ids(4)[masked]) + F.cross_entropy(next_sentence, follows)
    agree("bert", "logits", ours.logits(hidden)[attention_mask], expected.prediction_logits[attention_mask], dtype)
    agree("bert", "logits next sentence", next_sentence, expected.seq_relationship_logits, dtype)
    agree("bert", "loss", loss, expected.loss, dtype)
    loss.backward()
    expected.loss.backward()
    agree_on_gradients("bert", ours, theirs, dtype, agree)


def factorisation():
    """An order in which some positions are context (place 0) and three of the others are queries."""
    order = torch.stack([torch.randperm(T, generator=draws(i)) for i in range(B)])
    order = torch.where(order < 4, 0, order)
    queries = torch.stack([(row > 0).nonzero()[torch.randperm(7, generator=draws(9))[:3], 0] for row in order])
    hides = order[:, None, :] >= order[:, :, None]
    context = order == 0
    hides &= ~(context[:, :, None] & context[:, None, :])
    return order, queries, hides


@BOTH
@pytest.mark.parametrize("parts", ["queries memory segments", "queries", "memory segments", "segments", "memory"])
def test_xlnet_is_xlnet(pair, agree, dtype, parts):
    ours, theirs = pair("xlnet", dtype)
    order, queries, hides = factorisation()
    arguments, kwargs = {}, {"perm_mask": hides.to(dtype), "use_mems": False}
    if "segments" in parts:
        arguments["segments"] = kwargs["token_type_ids"] = ids(1, below=3)
    if "memory" in parts:
        states = torch.randn(ours.config.layers, M, B, ours.config.width, generator=draws(5)).to(dtype)
        kwargs["mems"] = list(states)
        arguments["memory"] = Memory(states.permute(2, 0, 1, 3), torch.ones(B, M, dtype=torch.bool))
    targets = ids(4)
    if "queries" in parts:
        arguments["queries"], targets = queries, ids(4, length=3)
        kwargs["target_mapping"] = F.one_hot(queries, T).to(dtype)
    expected = theirs(ids(), labels=targets, **kwargs)
    hidden = ours(ids(), order, **arguments)
    logits = ours.logits(hidden.query if "queries" in parts else hidden.content)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    agree("xlnet", "logits", logits, expected.logits, dtype)
    agree("xlnet", "loss", loss, expected.loss, dtype)
    loss.backward()
    expected.loss.backward()
    unreached = () if "queries" in parts else ("unknown",)
    unreached += () if "segments" in parts else ("segments", "segment_bias")
    agree_on_gradients("xlnet", ours, theirs, dtype, agree, unreached)


def test_the_distances_of_xlnet_are_encoded_as_the_reference_encodes_them(pair):
    ours, _ = pair("xlnet", torch.float64)
    config, reference = REFERENCES["xlnet"]
    theirs = reference(config(**FAMILIES["xlnet"].their_config(vars(ours.config)))).transformer
    expected = theirs.relative_positional_encoding(T, T + M, bsz=1)[:, 0].double()
    found = distance_encodings(T + M, T, ours.unknown)
    assert found.shape == expected.shape == (T + M + T, 30)
    assert (found - expected).abs().max() < 1e-5
