"""ELECTRA. Clark, Luong, Le, Manning 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
Generators".

Section 2 of the paper and the released code: two encoders of BERT's blocks. The generator, a small one, predicts masked
tokens; the discriminator decides for each token whether it was replaced by a sample from the generator, and is the part
that is fine-tuned. Both share the embeddings of tokens, positions and segments (section 3.2), with their normalisation,
and project them to their own widths if these differ.

GELU is computed exactly (erf) and not in its tanh form, as in PyTorch's ports of the released weights.

Shapes: B rows, T positions, N masked positions, D width, E embedding size, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import BERTConfig, ELECTRAConfig
from plm_core.models.bert import Block, embed_ids, initialise
from plm_core.models.output_layer import Output


class Generator(nn.Module):
    """Predicts masked tokens from the shared embeddings."""

    def __init__(self, config: BERTConfig, embedding: int) -> None:
        super().__init__()
        self.project = projection(embedding, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.transform = nn.Linear(config.width, embedding)
        self.transform_norm = nn.LayerNorm(embedding, eps=config.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, attn_mask: Tensor | None, at: Tensor, tokens: Tensor) -> Tensor:
        """Embedded ids ``[B, T, E]`` to logits ``[B, N, V]`` of the positions ``at`` [B, N].

        ``attn_mask`` is as in BERT's blocks; ``tokens`` [V, E] are the embeddings, to which the output layer is tied.
        """
        x = self.project(x)
        for block in self.blocks[:-1]:
            x = block(x, attn_mask)
        # As in BERT: the last states of positions that are not masked are not needed.
        x = self.blocks[-1](x, attn_mask, at)
        x = self.transform_norm(F.gelu(self.transform(x)))
        return Output(x, tokens, self.bias).logits()


class ELECTRA(nn.Module):
    """The discriminator by ``encode`` and ``detect``; the generator by ``predict``."""

    def __init__(self, config: ELECTRAConfig) -> None:
        super().__init__()
        self.config = config
        embedding = config.embedding or config.width
        self.tokens = nn.Embedding(config.vocab_size, embedding)
        self.positions = nn.Embedding(config.context, embedding)
        self.segments = nn.Embedding(config.segments, embedding)
        self.norm = nn.LayerNorm(embedding, eps=config.discriminator.norm_epsilon)
        self.drop = nn.Dropout(config.dropout)
        self.project = projection(embedding, config.width)
        self.blocks = nn.ModuleList(Block(config.discriminator) for _ in range(config.layers))
        self.transform = nn.Linear(config.width, config.width)
        self.replaced = nn.Linear(config.width, 1)
        # Last, so that layer-wise learning rates do not count it as layers below the discriminator's.
        self.generator = Generator(config.generator, embedding)
        initialise(self, config.initializer_range)

    def forward(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Ids ``[B, T]`` to the discriminator's hidden states ``[B, T, D]``, which have seen all ids.

        For ``segments``, ``attention_mask`` and the ValueError see ``BERT.forward``.
        """
        x, attn_mask = embed_ids(self, ids, segments, attention_mask)
        x = self.project(x)
        for block in self.blocks:
            x = block(x, attn_mask)
        return x

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states ``[B, T, D]`` for a task: the same as ``forward``."""
        return self(ids, segments, attention_mask)

    def detect(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]`` to the logit ``[B, T]`` that a token was replaced."""
        # No normalisation between the two layers, unlike in the generator's head (as released).
        return self.replaced(F.gelu(self.transform(hidden)))[..., 0]

    def pool(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]`` to one vector per row, ``[B, D]``: the first position's (as released)."""
        # BERT's pooler is trained by next-sentence prediction, which ELECTRA does not have.
        return hidden[:, 0]

    def predict(self, ids: Tensor, at: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Ids ``[B, T]`` with masks to the generator's logits ``[B, N, V]`` at the positions ``at`` [B, N].

        For ``attention_mask`` and the ValueError see ``BERT.forward``.
        """
        x, attn_mask = embed_ids(self, ids, attention_mask=attention_mask)
        return self.generator(x, attn_mask, at, self.tokens.weight)


def projection(embedding: int, width: int) -> nn.Module:
    """A projection from the size of the embeddings to another width; the identity if they are equal."""
    return nn.Identity() if embedding == width else nn.Linear(embedding, width)
