"""ELMo. Peters, Neumann, Iyyer, Gardner, Clark, Lee, Zettlemoyer 2018, "Deep contextualized word representations".

Section 3.1 and the released code (allenai/bilm-tf): a token is read as characters, by convolutions with a maximum over
the token, highway layers and a projection (Kim et al. 2015, "Character-Aware Neural Language Models"); stacks of LSTMs
with projections (Sak et al. 2014) then read in both directions, each on its own; what they share are the token's
vector and the softmax. Without the second direction it is the LSTM language model of Jozefowicz et al. 2016, "Exploring
the Limits of Language Modeling". A hidden state is the forward direction's, followed by the backward direction's.

A token's characters are the bytes of its text between marks of the beginning and the end of a word. Here tokens may be
pieces of words: one that does not begin a word has no mark of a beginning.

Three things deviate: the softmax is over the whole vocabulary and not sampled, because vocabularies of pieces are small
and its loss is computed in chunks; a row's states begin at zero and do not continue those of the row before; and TF's
constant of 1 in the forget gate is part of its bias, where it begins.

Shapes: B rows, T positions, K characters, E the size of their embedding, N tokens, F filters, P the size of one
direction's state, D that of both, C cells, V vocabulary.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.configs.architectures import ELMoConfig
from plm_core.models.blocks import check_documents, check_ids, check_length, to_compute_dtype
from plm_core.models.output_layer import Output

WORD_BEGINS, WORD_ENDS, FILLER = 259, 260, 261
SENTENCE_BEGINS, SENTENCE_ENDS = 257, 258
"""The characters that are not bytes, which are 1 to 256. 0 is no character, and its embedding is zero."""

State = tuple[Tensor, Tensor]
"""What a layer continues from: the states ``[n, B, P]`` and the cells ``[n, B, C]`` of its LSTMs for n directions."""


def spelled(text: bytes | int, begins: bool, longest: int) -> list[int]:
    """The ``longest`` characters of a token: those of its text, or the character that it is."""
    letters = [text] if isinstance(text, int) else [1 + byte for byte in text]
    first = [WORD_BEGINS] if begins else []
    marked = [*first, *letters[: longest - 1 - len(first)], WORD_ENDS]
    return marked + [FILLER] * (longest - len(marked))


class Highway(nn.Module):
    """g relu(W x + b) + (1 - g) x, with the gate g = sigmoid(W' x + b') (Srivastava et al. 2015, equation 3)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, F]`` to ``[N, F]``."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """The vector of a token from its characters."""

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        size = sum(count for _, count in config.filters)
        self.activation = torch.relu if config.activation == "relu" else torch.tanh
        self.letters = nn.Embedding(FILLER + 1, config.characters, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(config.characters, count, width) for width, count in config.filters)
        self.highways = nn.ModuleList(Highway(size) for _ in range(config.highways))
        self.project = nn.Identity() if size == config.one_way else nn.Linear(size, config.one_way)

    def forward(self, characters: Tensor) -> Tensor:
        """``[N, K]`` to ``[N, P]``."""
        x = self.letters(characters).transpose(1, 2)
        x = torch.cat([self.activation(convolve(x).amax(-1)) for convolve in self.filters], dim=-1)
        for highway in self.highways:
            x = highway(x)
        return self.project(x)


class LSTM(nn.Module):
    """The weights of an LSTM with a projection of its output, which is also its state (Sak et al. 2014, equations 7 to
    13)."""

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        assert config.cells is not None
        P, C = config.one_way, config.cells
        # The gates in torch's order: input, forget, cell, output.
        self.read = nn.Linear(P, 4 * C)
        self.recur = nn.Linear(P, 4 * C, bias=False)
        self.project = nn.Linear(C, P, bias=False) if C > P else None


class Block(nn.Module):
    """A layer: an LSTM for each direction, which do not see each other."""

    def __init__(self, config: ELMoConfig, first: bool) -> None:
        super().__init__()
        # There is no connection around the first layer (as released).
        self.residual = config.residual and not first
        self.cell_clip, self.projection_clip = config.cell_clip, config.projection_clip
        self.drop = nn.Dropout(config.dropout)
        self.lstms = nn.ModuleList(LSTM(config) for _ in range(1 + config.backward))

    def forward(
        self,
        x: Tensor,
        kept: Tensor | None,
        documents: Tensor | None,
        directions: Sequence[int],
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """The input ``[B, T, D]`` of n directions, each 0 or 1, to their output ``[B, T, D]``, and the state after the
        row. For one alone D is P; the others are as in ``ELMo.layers``."""
        x = self.drop(x)

        def ahead(tensors: Sequence[Tensor]) -> Tensor:
            """What each direction reads, in the order of reading."""
            return torch.stack([t.flip(1) if back else t for t, back in zip(tensors, directions, strict=True)])

        lstms: list[Any] = [self.lstms[direction] for direction in directions]
        # Weights are read once: with LoRA, each is computed when it is read.
        recur = torch.stack([lstm.recur.weight for lstm in lstms]).mT
        project = None if lstms[0].project is None else torch.stack([lstm.project.weight for lstm in lstms]).mT
        parts = x.chunk(len(lstms), dim=-1)
        gates = ahead([lstm.read(part) for lstm, part in zip(lstms, parts, strict=True)]).unbind(2)
        n, P, gated = recur.shape
        h, c = state or (recur.new_zeros(n, len(x), size) for size in (P, gated // 4))
        kept = None if kept is None else ahead([kept] * n)[..., None]
        begins = None
        if documents is not None:
            begins = F.pad(ahead([documents] * n).diff(dim=2) != 0, (1, 0))[..., None]

        # Position by position, both directions at once: h is [n, B, P], c is [n, B, C].
        outputs = []
        for t, gate in enumerate(gates):
            if begins is not None:
                h, c = (before.masked_fill(begins[:, :, t], 0.0) for before in (h, c))
            # In full precision even with mixed precision: cells add up small numbers along the row.
            i, f, g, o = torch.baddbmm(gate, h.to(gate.dtype), recur.to(gate.dtype)).to(c.dtype).chunk(4, dim=-1)
            cells = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            if self.cell_clip is not None:
                cells = cells.clamp(-self.cell_clip, self.cell_clip)
            output = torch.sigmoid(o) * torch.tanh(cells)
            if project is not None:
                output = torch.bmm(output, project).to(c.dtype)
                if self.projection_clip is not None:
                    output = output.clamp(-self.projection_clip, self.projection_clip)
            if kept is not None:
                output, cells = (torch.where(kept[:, :, t], *pair) for pair in ((output, h), (cells, c)))
            h, c = output, cells
            outputs.append(h)

        made = zip(torch.stack(outputs, 2), directions, strict=True)
        y = torch.cat([part.flip(1) if back else part for part, back in made], dim=-1)
        return to_compute_dtype(x + y if self.residual else y), (h, c)


class ELMo(nn.Module):
    """Both directions by ``encode``; one by ``read`` or ``read_back``, whose states predict the next token or the one
    before."""

    characters: Tensor

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        self.config = config
        self.words = CharacterCNN(config)
        self.blocks = nn.ModuleList(Block(config, first=number == 0) for number in range(config.layers))
        self.drop = nn.Dropout(config.dropout)
        self.unembed = nn.Linear(config.one_way, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        # Until a vocabulary is given, a token's text is its number.
        digits = 1 + ord("0") + torch.arange(config.vocab_size)[:, None] // 10 ** torch.arange(7) % 10
        self.register_buffer("characters", F.pad(digits.int(), (0, config.longest - 7), value=FILLER))
        initialise(self)

    def spell(self, pieces: Sequence[tuple[bytes, bool]], ends: Collection[int]) -> None:
        """Read tokens as these texts from now on: the text of each id, and whether a word begins with it. The tokens
        ``ends`` are read as the end of a sentence."""
        rows = [
            spelled(SENTENCE_ENDS if token in ends else text, begins or token in ends, self.config.longest)
            for token, (text, begins) in enumerate(pieces)
        ]
        self.characters.copy_(torch.tensor(rows))

    def embed(self, ids: Tensor) -> Tensor:
        """The vectors of ids ``[B, T]``: ``[B, T, P]``.

        Raises:
            ValueError: T is larger than ``context``, or an id is outside the vocabulary.
        """
        check_length(ids.shape[1], self.config.context)
        check_ids(ids, self.config.vocab_size)
        if ids.device.type != "cpu" or torch.compiler.is_compiling():
            return self.words(self.characters[ids].flatten(0, 1)).unflatten(0, ids.shape)
        # Half of a batch's tokens occur in it more than once. Only here: a GPU would have to be waited for.
        different, places = ids.unique(return_inverse=True)
        return F.embedding(places, self.words(self.characters[different]))

    def layers(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        states: list[State] | None = None,
        directions: Sequence[int] = (),
    ) -> tuple[list[Tensor], list[State]]:
        """The tokens' vectors, once for each direction, and the output of each layer, L + 1 times ``[B, T, D]``; and
        the state of each layer after the row.

        ``attention_mask`` [B, T] is false for padding, which no position sees. ``documents`` [B, T] holds the document
        of each id in its row: each is read independently. The row continues from ``states``, as the previous call
        returned them. ``directions`` are 0 (forward), 1 (backward) or both; by default those that the model has.

        Raises:
            ValueError: as ``embed``, or ``documents`` are not as in ``blocks.py``, or given together with
                ``attention_mask``.
        """
        if documents is not None:
            if attention_mask is not None:
                raise ValueError("documents: given together with attention_mask; expected padding as one more document")
            check_documents(documents, ids)
        directions = directions or range(1 + self.config.backward)
        outputs = [to_compute_dtype(self.embed(ids).repeat(1, 1, len(directions)))]
        after = []
        for number, block in enumerate(self.blocks):
            state = states[number] if states else None
            output, state = block(outputs[-1], attention_mask, documents, directions, state)
            outputs.append(output)
            after.append(state)
        return outputs, after

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Ids ``[B, T]`` to the hidden states of both directions ``[B, T, D]``; for the rest see ``layers``."""
        return self.drop(self.layers(ids, attention_mask, documents)[0][-1])

    def encode(self, ids: Tensor, segments: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states ``[B, T, D]`` for a task: as ``forward``; there are no segments."""
        return self(ids, attention_mask)

    def read(self, ids: Tensor, attention_mask: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Read from left to right alone: ids ``[B, T]`` to states ``[B, T, P]``, which have seen ids up to their own.

        For the other arguments and the ValueError see ``layers``.
        """
        return self.drop(self.layers(ids, attention_mask, documents, directions=[0])[0][-1])

    def read_back(self, ids: Tensor) -> Tensor:
        """Read from right to left alone: ids ``[B, T]`` to states ``[B, T, P]``, which have seen ids from their own
        on."""
        return self.drop(self.layers(ids, directions=[1])[0][-1])

    def read_with_memory(
        self, ids: Tensor, attention_mask: Tensor | None = None, memory: list[State] | None = None
    ) -> tuple[Tensor, list[State]]:
        """As ``read``, where ids continue what was read by the call that returned ``memory``."""
        outputs, memory = self.layers(ids, attention_mask, states=memory, directions=[0])
        return self.drop(outputs[-1]), memory

    def logits(self, hidden: Tensor) -> Tensor:
        """States of one direction ``[..., P]`` to logits ``[..., V]``."""
        return self.output(hidden).logits()

    def output(self, hidden: Tensor) -> Output:
        """The output layer at states of one direction ``[..., P]``, which both directions share."""
        return Output(hidden, self.unembed.weight, self.bias)


@torch.no_grad()
def initialise(model: ELMo) -> None:
    """Draw all weights as released: character embeddings from [-1, 1], filters from [-0.05, 0.05] before a ReLU, and
    LSTMs uniformly by the sum of their inputs and outputs (Glorot and Bengio 2010, equation 16), other matrices from a
    normal distribution with variance 1 / inputs. Biases are zero, but for -2 in the highways' gates, which let most
    pass at first, and 1 in the LSTMs' forget gates."""
    for name, module in model.named_modules():
        if isinstance(module, LSTM):
            # Glorot's size is that of TF's one matrix: it reads a state and an input.
            P, C = module.recur.in_features, len(module.recur.weight) // 4
            bound = math.sqrt(6 / (2 * P + 4 * C))
            for part in (module.read, module.recur):
                nn.init.uniform_(part.weight, -bound, bound)
            nn.init.zeros_(module.read.bias)
            module.read.bias[C : 2 * C] = 1.0
            if module.project is not None:
                nn.init.xavier_uniform_(module.project.weight)
        elif isinstance(module, nn.Linear) and not name.startswith("blocks."):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.constant_(module.bias, -2.0 if name.endswith("gate") else 0.0)
        elif isinstance(module, nn.Conv1d):
            if model.config.activation == "relu":
                nn.init.uniform_(module.weight, -0.05, 0.05)
            else:
                nn.init.normal_(module.weight, std=(module.in_channels * module.kernel_size[0]) ** -0.5)
            module.bias.zero_()  # type: ignore[union-attr]
    nn.init.uniform_(model.words.letters.weight, -1.0, 1.0)
    model.words.letters.weight[0] = 0.0
