"""ModernBERT computes what ``ModernBertForMaskedLM`` of transformers computes: logits, loss, every gradient."""

import pytest
import torch
from compilers import pretend
from references import TOLERANCE, agree, agree_on_gradients, exactly, reference_of
from torch.nn import functional as F
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertForSequenceClassification

from plm_core.interchange import FAMILIES
from plm_core.models.blocks import places_in, same_document
from plm_core.objectives.loss import IGNORED
from plm_core.sections import models

B, T, V = 5, 11, 99
BOTH = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])


def ids(seed=0, rows=B, length=T):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pair(make):
    """Our model and the reference with the same random weights."""

    def made(dtype, **sizes):
        ours = make("modernbert", seed=7, dtype=dtype, **sizes)
        return ours, reference_of("modernbert", ours, ModernBertConfig, ModernBertForMaskedLM, dtype)

    return made


@BOTH
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "sizes", [{}, {"window": 1}, {"global_every": 3}, {"global_every": 1}, {"window": 99}], ids=str
)
def test_logits_loss_and_gradients_are_those_of_the_reference(pair, dtype, padded, sizes):
    ours, theirs = pair(dtype, **sizes)
    lengths = torch.tensor([11, 7, 3, 9, 5]) if padded else torch.tensor([T] * B)
    attention_mask = torch.arange(T) < lengths[:, None]
    masked = (torch.rand(B, T, generator=torch.Generator().manual_seed(3)) < 0.4) & attention_mask
    with exactly(dtype):
        expected = theirs(
            ids(),
            attention_mask=attention_mask.long() if padded else None,
            labels=torch.where(masked, ids(4), IGNORED),
        )
        expected.loss.backward()
    hidden = ours(ids(), attention_mask=attention_mask if padded else None)
    loss = F.cross_entropy(ours.logits(hidden[masked]), ids(4)[masked])
    agree(ours.logits(hidden)[attention_mask], expected.logits[attention_mask])
    agree(loss, expected.loss, "loss")
    loss.backward()
    agree_on_gradients("modernbert", ours, theirs)


@BOTH
@torch.no_grad()
def test_documents_side_by_side_are_what_the_reference_makes_of_their_masks_and_places(pair, dtype):
    ours, theirs = pair(dtype)
    documents = torch.tensor([[0] * 11, [0] * 5 + [1] * 6, [0, 1, 1, 4, 4, 4, 4, 4, 4, 7, 7]])
    near = (torch.arange(T)[:, None] - torch.arange(T)).abs() <= 3
    seen = {"full_attention": same_document(documents), "sliding_attention": same_document(documents) & near}
    smallest = torch.finfo(dtype).min
    with exactly(dtype):
        expected = theirs(
            ids(rows=3),
            attention_mask={
                name: torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, smallest) for name, mask in seen.items()
            },
            position_ids=places_in(documents),
        ).logits
    agree(ours.logits(ours(ids(rows=3), documents=documents)), expected)


@BOTH
@torch.no_grad()
def test_a_row_is_pooled_as_the_classifier_of_the_reference_pools_it(pair, dtype):
    ours, _ = pair(dtype)
    theirs = ModernBertForSequenceClassification(
        ModernBertConfig(**FAMILIES["modernbert"].their_config(vars(ours.config)), num_labels=30)
    ).to(dtype)
    weights = FAMILIES["modernbert"].to_theirs(ours.state_dict(), ours.config.layers, ours.config.heads)
    lacking, unknown = theirs.load_state_dict(weights, strict=False)
    assert (set(lacking), set(unknown)) == ({"classifier.weight", "classifier.bias"}, {"decoder.bias"})
    torch.nn.init.eye_(theirs.classifier.weight)
    torch.nn.init.zeros_(theirs.classifier.bias)
    agree(ours.pool(ours.encode(ids())).float(), theirs.eval()(ids()).logits.float())


def test_dropout_is_where_the_reference_has_it(pair, monkeypatch):
    """One seed here and there: as many numbers are drawn, in the same order, for the same activations."""
    ours, theirs = pair(torch.float64, dropout=0.3)
    pretend(monkeypatch)  # attention as two products, as the reference has
    torch.manual_seed(5)
    found = ours.train().logits(ours(ids()))
    torch.manual_seed(5)
    with exactly(torch.float64):
        expected = theirs.train()(ids()).logits
    agree(found, expected)
    assert (found - ours.eval().logits(ours(ids()))).abs().max() > 0.1


@torch.no_grad()
def test_segments_are_not_read(make):
    model = make("modernbert")
    assert torch.equal(model.encode(ids(), ids(3) % 2), model.encode(ids()))


@pytest.mark.parametrize("kind", ["float32", "bfloat16 autocast", "bfloat16"])
@torch.no_grad()
def test_it_computes_in_the_precision_that_it_is_asked_for(make, kind):
    model = make("modernbert", dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in kind):
        logits = model.logits(model(ids(), at=ids(3, length=4) % T))
    assert logits.dtype == (torch.float32 if kind == "float32" else torch.bfloat16)
    exact = make("modernbert")
    exact = exact.logits(exact(ids(), at=ids(3, length=4) % T))
    assert (logits.double() - exact).norm() < (1e-5 if kind == "float32" else 0.1) * exact.norm()


def test_of_three_layers_one_reads_the_row_and_the_first_needs_no_norm():
    model = models.MODELS["modernbert"].model(models.ModernBERTConfig(99, 17, 7, 4, 24))
    assert [block.whole for block in model.blocks] == [True, False, False, True, False, False, True]
    assert [hasattr(block.norm_1, "weight") for block in model.blocks] == [False] + [True] * 6
    assert model.config.inner == 64
    assert models.ModernBERTConfig(99, 17, 7, 4, 24, inner=7).inner == 7
