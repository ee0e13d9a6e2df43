"""XLNet. Yang, Dai, Yang, Carbonell, Salakhutdinov, Le 2019, "XLNet: Generalized Autoregressive Pretraining".

Section 2.3: two streams with shared parameters. The content stream h_i sees token i; the query stream g_i knows only
position i, and predicts the token there. Section 2.4, from Transformer-XL (Dai et al. 2019, section 3): each layer also
attends to the states that it kept of the preceding text (the memory, without a gradient), and positions enter as
distances: score(i, j) = (q_i + u) k_j + (q_i + v) r_(i-j) + (q_i + w) s_(i,j), where r is an encoding of the distance
and s (section 2.5) says whether i and j are in the same segment. The content stream alone, reading from left to right,
is Transformer-XL.

What a position sees follows from one integer, its place in the factorisation order: the content stream sees places up
to and including its own, the query stream only places before its own. Positions that share a place see each other in
the content stream. So 0, 1, 2, ... reads from left to right, equal places read in both directions, a permutation gives
the permuted order, and padding comes last.

As released, but not in the paper's text: tokens that are not predicted see each other (they share a place), memory
counts as the first segment, layer normalisation follows each sum, and each layer has its own biases u, v, w. GELU is
computed exactly (erf) and not in its tanh form, as in PyTorch's ports of the released weights.

Shapes: B rows, T positions, N queries, M memory, K = M + T, D width, H heads, L layers, V vocabulary.
"""

from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import XLNetConfig
from plm_core.models.blocks import attend, check_ids, check_length, to_compute_dtype, windows_at
from plm_core.models.output_layer import Output

EPSILON = 1e-12
"""Added to the variance in layer normalisation, as released."""


class Memory(NamedTuple):
    """What each layer keeps of the preceding text."""

    states: Tensor
    """The inputs of the layers, ``[B, L, M, D]``, without a gradient."""
    attention_mask: Tensor
    """``[B, M]``, false where the memory is empty: at the start of a text, and for padding."""

    def extended(self, states: Tensor, attention_mask: Tensor, documents: "Documents | None" = None) -> Self:
        """The memory followed by ``states`` [B, L, T, D], visible where ``attention_mask`` [B, T] is true; of several
        documents only the one that continues."""
        before = self
        if documents is not None:
            before = self.where(documents.following == 0)
            attention_mask = attention_mask & (documents.number == documents.following[:, None])
        return type(self)(
            torch.cat((before.states, states.detach()), dim=2),
            torch.cat((before.attention_mask, attention_mask), dim=1),
        )

    def where(self, kept: Tensor) -> Self:
        """The memory, hidden from rows for which ``kept`` [B] is false."""
        return type(self)(self.states, self.attention_mask & kept[:, None])

    def first(self, rows: int) -> Self:
        """The memory of the first ``rows``."""
        return type(self)(self.states[:rows], self.attention_mask[:rows])

    def last(self, positions: int) -> Self:
        """The memory of the last ``positions``."""
        start = max(0, self.attention_mask.shape[1] - positions)
        return type(self)(self.states[:, :, start:], self.attention_mask[:, start:])


class Documents(NamedTuple):
    """The documents of a row, numbered from 0, which continues from the memory. They do not see each other."""

    number: Tensor
    """The document of each position, ``[B, T]``."""
    following: Tensor
    """The document that continues after the row, ``[B]``."""


class View(NamedTuple):
    """What the attention of all layers shares, for one stream of Q positions (T or N)."""

    distances: Tensor
    """The encodings of the distances K, K - 1, ... 1 - T, ``[K + T, D]``."""
    places: Tensor | None
    """The positions of the queries, ``[B, Q]``; None for the content stream: 0, 1, ... T - 1."""
    same: Tensor | None
    """Whether query and key are in the same segment, ``[B, 1, Q, K]``; None if the text has no segments."""
    attn_mask: Tensor
    """Whether the query sees the key, ``[B, 1, Q, K]``."""


class Hidden(NamedTuple):
    """The hidden states of a text."""

    content: Tensor
    """The content stream's last states, ``[B, T, D]``."""
    query: Tensor | None
    """The query stream's last states, ``[B, N, D]``; None without queries."""
    states: Tensor
    """The content stream's states before each layer, ``[B, L, T, D]``: what memory is made of."""


class Attention(nn.Module):
    """Relative attention with its biases for content (u), distance (v) and segment (w)."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        size = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.width, bias=False)
        self.v = nn.Linear(config.width, config.width, bias=False)
        self.r = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        # u, v and w of the equation above: one vector per head and layer.
        self.content_bias = nn.Parameter(torch.empty(config.heads, 1, size))
        self.distance_bias = nn.Parameter(torch.empty(config.heads, 1, size))
        self.segment_bias = nn.Parameter(torch.empty(config.heads, 1, size))
        self.segments = nn.Parameter(torch.empty(2, config.heads, size))

    def forward(self, x: Tensor, k: Tensor, v: Tensor, view: View) -> Tensor:
        """Either stream ``[B, Q, D]``, with the content's keys and values ``[B, H, K, D/H]``, to ``[B, Q, D]``."""
        q = self.split(self.q(x))
        # (q + u) k is the attention product; the other two terms of the equation are its bias.
        r = self.split(self.r(view.distances)[None])
        bias = _by_distance((q + self.distance_bias) @ r.transpose(-1, -2), view.places, k.shape[2])
        if view.same is not None:
            # Segments are relative too: all that matters is whether key and query are in the same one (section 2.5).
            same, other = torch.einsum("bhqd,shd->sbhq", q + self.segment_bias, self.segments)[..., None]
            bias = bias + torch.where(view.same, same, other)
        dropout = self.dropout if self.training else 0.0
        y = attend(q + self.content_bias, k, v, view.attn_mask, bias=bias, dropout=dropout)
        return self.out(y.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """``[B, T, D]`` to ``[B, H, T, D/H]``."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _by_distance(scores: Tensor, places: Tensor | None, keys: int) -> Tensor:
    """Scores against every distance, ``[B, H, Q, K + T]``, to scores against every key, ``[B, H, Q, K]``.

    A query at position i and key j are M + i - j apart, which is row T - i + j of the distances. For the content stream
    that is a view: in rows that are one shorter, row i begins i columns earlier (Dai et al. 2019, appendix B).
    """
    B, H, Q, R = scores.shape
    if places is None:
        # By strides: a compiler turns slices into a division per element.
        return scores.contiguous().as_strided((B, H, Q, keys), (H * Q * R, Q * R, R - 1, 1), Q)
    return windows_at(scores, R - keys - places, keys)


class Block(nn.Module):
    """One layer of either stream; post-norm."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.norm_1 = nn.LayerNorm(config.width, eps=EPSILON)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.norm_2 = nn.LayerNorm(config.width, eps=EPSILON)
        self.drop = nn.Dropout(config.dropout)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Memory and content ``[B, K, D]`` to the keys and values of both streams, ``[B, H, K, D/H]``."""
        return self.attention.split(self.attention.k(x)), self.attention.split(self.attention.v(x))

    def forward(self, x: Tensor, k: Tensor, v: Tensor, view: View) -> Tensor:
        """Either stream, ``[B, Q, D]`` to ``[B, Q, D]``."""
        x = to_compute_dtype(self.norm_1(x + self.drop(self.attention(x, k, v, view))))
        # Dropout inside as well, as released.
        return to_compute_dtype(self.norm_2(x + self.drop(self.down(self.drop(F.gelu(self.up(x)))))))


class XLNet(nn.Module):
    """Both streams with ``forward``; ``read`` is Transformer-XL, ``encode`` the content stream for fine-tuning."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.unknown = nn.Parameter(torch.empty(config.width))
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialise(self)

    def forward(
        self,
        ids: Tensor,
        order: Tensor | None = None,
        segments: Tensor | None = None,
        memory: Memory | None = None,
        queries: Tensor | None = None,
        documents: Documents | None = None,
    ) -> Hidden:
        """Ids ``[B, T]`` to the states of both streams.

        Args:
            ids: The token ids.
            order: ``[B, T]`` int, each position's place in the factorisation order (None: all the same place).
            segments: ``[B, T]`` int, the segment of each position (None: the text has none).
            memory: The memory of the preceding text; every position of the row's first document sees it.
            queries: ``[B, N]`` int, the positions that the query stream predicts (None: no query stream).
            documents: The documents of the row (None: memory and row are one).

        Raises:
            ValueError: T is larger than ``context``, an id is outside the vocabulary, or the memory has other rows or
                layers than the text.
        """
        B, T = ids.shape
        check_length(T, self.config.context)
        check_ids(ids, self.config.vocab_size)
        order = torch.zeros_like(ids) if order is None else order
        memory = self.empty_memory(B, 0) if memory is None else memory
        rows, layers, M, width = memory.states.shape
        if rows != B:
            raise ValueError(f"memory: holds {rows} rows; expected the {B} rows of the ids")
        if (self.config.layers, self.config.width) != (layers, width):
            raise ValueError(
                f"memory: has {layers} layers and width {width}; expected layers {self.config.layers} and width "
                f"{self.config.width}"
            )

        # What each stream sees, by the places in the order.
        distances = self.drop(distance_encodings(M + T, T, self.tokens.weight))

        def view(places: Tensor | None) -> View:
            own = order if places is None else order.gather(1, places)
            # The content stream sees its own place; the query stream must not, or it would see what it predicts.
            seen = order[:, None, :] <= own[..., None] if places is None else order[:, None, :] < own[..., None]
            before = memory.attention_mask[:, None, :].expand(-1, own.shape[1], -1)
            if documents is not None:
                number = documents.number if places is None else documents.number.gather(1, places)
                seen = seen & (documents.number[:, None, :] == number[..., None])
                before = before & (number == 0)[..., None]
            same = None
            # Memory counts as the first segment (as released), hence a 0 for each of its positions.
            if segments is not None:
                asking = segments if places is None else segments.gather(1, places)
                same = (F.pad(segments, (M, 0))[:, None, :] == asking[..., None])[:, None]
            return View(distances, places, same, torch.cat((before, seen), dim=2)[:, None])

        content = view(None)
        query = None if queries is None else view(queries)

        # Both streams, layer by layer.
        h = self.drop(to_compute_dtype(self.tokens(ids)))
        states = []
        # Queries start as the same vector everywhere: they know their position and not their token.
        g = None if queries is None else self.drop(to_compute_dtype(self.unknown).expand(B, queries.shape[1], -1))
        for i, block in enumerate(cast(list[Block], self.blocks)):
            states.append(h.detach())
            # Memory may have another precision, from autocast at the previous step.
            k, v = block.keys(torch.cat((memory.states[:, i].to(h.dtype), h), dim=1))
            h = block(h, k, v, content)
            if g is not None and query is not None:
                # The same weights, keys and values; only the queries and what they see differ.
                g = block(g, k, v, query)
        return Hidden(self.drop(h), None if g is None else self.drop(g), torch.stack(states, dim=1))

    def read(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Read from left to right: ids ``[B, T]`` to content states ``[B, T, D]`` that have seen ids up to their own.

        ``attention_mask`` [B, T] is false for padding, which is never seen.
        """
        attention_mask = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        return self(ids, left_to_right(attention_mask)).content

    def read_with_memory(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        memory: Memory | None = None,
        ends: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As ``read``, where ids continue the text of ``memory``, which the previous call returned, whole or shortened.

        Where ``ends`` [B, T] is true, another document begins, which sees that token and nothing before it.

        Raises:
            ValueError: as ``forward``.
        """
        attention_mask = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        memory = self.empty_memory(len(ids), 0) if memory is None else memory
        documents = None if ends is None else self.documents_between(ends, behind=True)
        hidden = self(ids, left_to_right(attention_mask), memory=memory, documents=documents)
        return hidden.content, memory.extended(hidden.states, attention_mask, documents)

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Content states ``[B, T, D]`` that have seen all ids, for a task; ``attention_mask`` [B, T] is false for
        padding."""
        return self(ids, None if attention_mask is None else (~attention_mask).long(), segments).content

    def logits(self, hidden: Tensor) -> Tensor:
        """States ``[..., D]`` to logits ``[..., V]``."""
        return self.output(hidden).logits()

    def output(self, hidden: Tensor) -> Output:
        """The output layer at states ``[..., D]``: the token embedding (tied) with a bias."""
        return Output(hidden, self.tokens.weight, self.bias)

    def empty_memory(self, rows: int, size: int) -> Memory:
        """An empty memory of ``size`` positions, in the dtype of the states that will fill it."""
        weight = self.tokens.weight
        states = to_compute_dtype(weight.new_zeros(rows, self.config.layers, size, self.config.width))
        return Memory(states, torch.zeros(rows, size, dtype=torch.bool, device=weight.device))

    def memory_for(self, begins: Tensor, carry: tuple[Tensor, ...] | None) -> Memory:
        """The memory of ``config.memory`` positions for a batch, from what the previous batch left.

        ``begins`` [B] is true for rows that do not continue a text: they see none of it.
        """
        memory = self.empty_memory(len(begins), self.config.memory) if carry is None else Memory(*carry)
        return memory.where(~begins)

    @staticmethod
    def documents_between(ends: Tensor, behind: bool = False) -> Documents:
        """The documents of a row, which end at the tokens for which ``ends`` [B, T] is true.

        With ``behind`` a position represents what follows its token, so that such a token begins the next document.
        """
        number = ends.long().cumsum(1)
        return Documents(number if behind else number - ends.long(), number[:, -1])


def left_to_right(attention_mask: Tensor) -> Tensor:
    """The order ``[B, T]`` in which each position sees those before it; padding comes last, so it is never seen."""
    T = attention_mask.shape[1]
    return torch.where(attention_mask, torch.arange(T, device=attention_mask.device), T)


def distance_encodings(largest: int, below: int, like: Tensor) -> Tensor:
    """Sines, then cosines, of the distances ``largest`` down to ``1 - below``, ``[largest + below, D]``.

    Vaswani et al. 2017, section 3.5, without interleaving (as released).
    """
    D = like.shape[-1]
    frequencies = 10000 ** (-torch.arange(0, D, 2, device=like.device, dtype=torch.float64) / D)
    angles = torch.arange(largest, -below, -1, device=like.device, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(like.dtype)


def initialise(model: XLNet) -> None:
    """Draw matrices, embeddings and attention biases with standard deviation ``initializer_range``; the rest is zeros
    and unit gains.

    As released; but the query stream's first state keeps the released 0.02, because a larger one, which is the same at
    all positions, drowns the output of attention (after 300 steps: 5.5 nats with 0.02, 6.3 with 0.05).
    """
    for name, parameter in model.named_parameters():
        if "norm" in name:
            continue  # gains one, biases zero already
        if name == "unknown":
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith(("content_bias", "distance_bias", "segment_bias", "segments", "weight")):
            nn.init.normal_(parameter, std=model.config.initializer_range)
        else:
            nn.init.zeros_(parameter)
