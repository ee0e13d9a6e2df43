"""T5. Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer".

Section 2.1 changes the encoder-decoder Transformer: the input of each sub-block is normalised, by a norm without a
mean and a bias (RMSNorm), and what the encoder and the decoder end with is normalised too; no layer has a bias; and a
position is not embedded, but its distance to another is a bias of their product, one for each head and group of
distances, shared by the layers. As released, products are not scaled, because the initial weights of queries are small
instead; T5 1.1 has a feed-forward layer gated by a GELU, and an output layer of its own (Shazeer 2020).

Shapes: as in ``transformer.py``.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from plm_core.configs.architectures import T5Config
from plm_core.models.blocks import check_ids, to_compute_dtype
from plm_core.models.gpt import gelu
from plm_core.models.output_layer import Output
from plm_core.models.transformer import Block, Transformer

EPSILON = 1e-6
"""Added to the mean square in RMSNorm."""


def rms_norm(width: int) -> nn.RMSNorm:
    """The norm of T5."""
    return nn.RMSNorm(width, eps=EPSILON)


class PreNormBlock(Block):
    """A block whose sub-blocks read the normalised residual stream and add to the original one."""

    norms = staticmethod(rms_norm)
    with_bias = scaled = False

    def __init__(self, config: T5Config, decoder: bool) -> None:
        super().__init__(config, decoder)
        if config.gated:
            self.gate = nn.Linear(config.width, self.up.out_features, bias=False)

    def add(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.drop(layer(norm(x)))

    def feed_forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "gate"):
            return super().feed_forward(x)
        # GEGLU: Shazeer 2020, equation 6.
        return self.down(self.drop(gelu(self.gate(x)) * self.up(x)))


class T5(Transformer):
    """The encoder and the decoder; next-token logits by ``logits``."""

    block = PreNormBlock

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.encoder_distances = nn.Embedding(config.buckets, config.heads)
        self.decoder_distances = nn.Embedding(config.buckets, config.heads)
        self.encoder_norm = rms_norm(config.width)
        self.norm = rms_norm(config.width)
        if not config.tied:
            self.unembed = nn.Linear(config.width, config.rows, bias=False)
        initialise(self)

    def embed(self, ids: Tensor, past: int) -> Tensor:
        check_ids(ids, self.config.rows)
        return self.drop(to_compute_dtype(self.tokens(ids)))

    def distance_bias(self, queries: int, keys: int, decoder: bool) -> Tensor:
        """``[1, H, queries, keys]``: the bias of each query's distance to each key (section 2.1)."""
        table = self.decoder_distances if decoder else self.encoder_distances
        # The last query is at the last key. A query's row is a window of the biases of all distances.
        distances = torch.arange(1 - keys, queries, device=table.weight.device)
        biases = table(buckets_of(distances, self.config.buckets, self.config.max_distance, not decoder))
        return biases.T.unfold(-1, keys, 1).flip(-2)[None]

    def end(self, x: Tensor, decoder: bool) -> Tensor:
        return self.drop((self.norm if decoder else self.encoder_norm)(x))

    def output(self, hidden: Tensor) -> Output:
        """The output layer at the decoder's states ``[..., D]``; for tied embeddings, which are large, they are scaled
        down."""
        if self.config.tied:
            return Output(hidden * self.config.width**-0.5, self.tokens.weight)
        return Output(hidden, self.unembed.weight)


def buckets_of(distances: Tensor, buckets: int, max_distance: int, both_ways: bool) -> Tensor:
    """The group of each distance from a query to a key (negative if the key comes before), as released.

    Half of the groups hold one distance each, the others ever more, in a logarithmic order. ``both_ways`` gives half of
    all groups to keys that come after the query, which otherwise count as distance 0.
    """
    first = torch.zeros_like(distances)
    if both_ways:
        buckets //= 2
        first = (distances > 0) * buckets
        distances = distances.abs()
    else:
        distances = (-distances).clamp(min=0)
    exact = buckets // 2
    # In float32 as released: in another precision a distance at a boundary would change its group.
    share = torch.log(distances.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distances < exact, distances, far)


def initialise(model: T5) -> None:
    """Draw from normal distributions as released (Mesh TensorFlow): 1 for embeddings, 1/sqrt(inputs) for matrices, and
    queries by the size of a head smaller, because products are not scaled."""
    c = model.config
    nn.init.normal_(model.tokens.weight)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = c.head_width**-0.5 if name.endswith(".q") else 1.0
            nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)
    for table in (model.encoder_distances, model.decoder_distances):
        nn.init.normal_(table.weight, std=c.width**-0.5)
