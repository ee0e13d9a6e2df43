"""ELECTRA computes what its two references in transformers compute: logits, loss and every parameter's gradient."""

import pytest
import torch
from references import TOLERANCE, agree
from torch.nn import functional as F
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from plm_core.interchange import FAMILIES
from plm_core.objectives.replaced import Replaced, ReplacedBatch, sampled
from plm_core.text.tokenizers import MASK

B, T, N, V = 5, 11, 3, 99
BOTH = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
NAMES = {
    "tokens.weight": "embeddings.word_embeddings.weight",
    "positions.weight": "embeddings.position_embeddings.weight",
    "segments.weight": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}
DISCRIMINATOR = {
    "transform": "discriminator_predictions.dense",
    "replaced": "discriminator_predictions.dense_prediction",
}
GENERATOR = {"transform": "generator_predictions.dense", "transform_norm": "generator_predictions.LayerNorm"}


def encoder(tensors, prefix, width, heads, embedding):
    """The weights of one encoder, or their gradients, under the names of the reference."""
    named = {}
    for ours, theirs, layout in FAMILIES["bert"].lines({"layers": 2, "segments": 2}):
        if ours.startswith("blocks."):
            names = [name.replace("bert.", "electra.") for name in theirs]
            named |= zip(names, layout.theirs(tensors[prefix + ours], heads), strict=True)
    if embedding != width:
        named |= {f"electra.embeddings_project.{k}": tensors[f"{prefix}project.{k}"] for k in ("weight", "bias")}
    return named


def both(tensors, config, embedding):
    """The weights, or their gradients, under the names of the two references."""
    shared = {f"electra.{theirs}": tensors[ours] for ours, theirs in NAMES.items()}
    parts = {"weight", "bias"}
    discriminator = shared | encoder(tensors, "", config.width, config.heads, embedding)
    discriminator |= {f"{theirs}.{p}": tensors[f"{ours}.{p}"] for ours, theirs in DISCRIMINATOR.items() for p in parts}
    small = config.generator
    generator = shared | encoder(tensors, "generator.", small.width, small.heads, embedding)
    generator |= {
        f"{theirs}.{p}": tensors[f"generator.{ours}.{p}"] for ours, theirs in GENERATOR.items() for p in parts
    }
    return discriminator, generator | {"generator_lm_head.bias": tensors["generator.bias"]}


@pytest.fixture
def made(make):
    def pair(dtype, **sizes):
        ours = make("electra", seed=7, dtype=dtype, **sizes)
        config = ours.config
        embedding = config.embedding or config.width
        references = []
        for reference, part in ((ElectraForPreTraining, config.discriminator), (ElectraForMaskedLM, config.generator)):
            theirs = reference(
                ElectraConfig(
                    vocab_size=V,
                    embedding_size=embedding,
                    hidden_size=part.width,
                    num_hidden_layers=part.layers,
                    num_attention_heads=part.heads,
                    intermediate_size=4 * part.width,
                    max_position_embeddings=part.context,
                    layer_norm_eps=1e-12,
                    attn_implementation="eager",
                )
            )
            references.append(theirs.to(dtype).eval())
        for theirs, weights in zip(references, both(ours.state_dict(), config, embedding), strict=True):
            lacking, unknown = theirs.load_state_dict(weights, strict=False)
            assert set(lacking) <= {"generator_lm_head.weight"}
            assert not unknown
        discriminator, generator = references
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
        return ours, discriminator, generator

    return pair


def batch():
    draws = torch.Generator().manual_seed(3)
    ids = torch.randint(9, V, (B, T), generator=draws)
    at = torch.stack([torch.randperm(T, generator=draws)[:N] for _ in range(B)])
    attention_mask = torch.ones(B, T, dtype=torch.bool)
    inputs = ids.scatter(1, at, torch.full_like(at, MASK))
    chances = torch.rand(B, N, generator=draws, dtype=torch.float64)
    none = torch.full((B,), -100)
    return ReplacedBatch(inputs, ids.gather(1, at), at, torch.zeros_like(ids), attention_mask, none, chances), ids


@BOTH
@pytest.mark.parametrize("sizes", [{"embedding": 15}, {"generator_heads": 3}], ids=["projected", "of one width"])
def test_electra_loss_matches_the_reference(made, dtype, sizes):
    ours, discriminator, generator = made(dtype, **sizes)
    given, ids = batch()
    predicted = generator(given.inputs).logits
    there = predicted.gather(1, given.positions[..., None].expand(-1, -1, V))
    agree(ours.predict(given.inputs, given.positions), there)
    read = given.inputs.scatter(1, given.positions, sampled(there, given.chances))
    wrong = read != ids
    assert 0 < int(wrong.sum()) < B * N + 1
    agree(ours.detect(ours(read)), discriminator(read).logits)
    expected = F.cross_entropy(there.flatten(0, 1), given.targets.flatten())
    expected = expected + 50 * F.binary_cross_entropy_with_logits(discriminator(read).logits, wrong.to(dtype))
    loss = Replaced().loss(ours, given)
    agree(loss.nll / loss.num_targets, expected)
    (loss.nll / loss.num_targets).backward()
    expected.backward()
    sides = both({n: p.grad for n, p in ours.named_parameters()}, ours.config, ours.tokens.embedding_dim)
    for theirs, gradients in zip((discriminator, generator), sides, strict=True):
        for name, parameter in theirs.named_parameters():
            if name in gradients and not name.endswith("key.bias"):  # which changes no weight of attention: 0
                agree(gradients[name], parameter.grad)


@BOTH
def test_electra_ignores_padding(made, dtype):
    ours, discriminator, generator = made(dtype)
    ids = batch()[1]
    attention_mask = torch.arange(T) < torch.tensor([11, 7, 3, 9, 5])[:, None]
    at = torch.zeros(B, 1, dtype=torch.long)
    agree(
        ours.predict(ids, at, attention_mask)[:, 0],
        generator(ids, attention_mask=attention_mask.long()).logits[:, 0],
    )
    agree(
        ours.detect(ours(ids, None, attention_mask))[attention_mask],
        discriminator(ids, attention_mask=attention_mask.long()).logits[attention_mask],
    )
