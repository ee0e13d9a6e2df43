"""A pretrained model as features: its weights stay as they are, and a small model reads the states of all its layers.

Peters et al. 2018, sections 3.2 and 3.3; Devlin et al. 2019, section 5.3, for BERT: a weighted sum of the layers, a
bidirectional LSTM over it, then the task's head. Tags of words are predicted together, by a linear-chain conditional
random field (Lafferty et al. 2001; Lample et al. 2016, section 2.2).

Shapes: B rows, T positions, L layers, D width of the pretrained model, P places of a row, C tags.
"""

from typing import Any

import torch
from torch import Tensor, nn

from plm_core.finetuning.finetune_config import FeaturesConfig
from plm_core.finetuning.input_formats import InputFormat
from plm_core.finetuning.task_heads import NOWHERE, Tags
from plm_core.models.blocks import rows_at
from plm_core.objectives.objective import IGNORED


@torch.no_grad()
def layer_states(backbone: Any, input_format: InputFormat, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    """The input of a model's first block and the output of each block, ``[L + 1, B, T, D]``, read as in fine-tuning.

    ``ids`` and ``segments`` are ``[B, T]``, ``lengths`` [B]. The blocks of any model here pass on their states as their
    first argument and their first result.
    """
    states: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        if not states:
            states.append(arguments[0])
        states.append(output[0] if isinstance(output, tuple) else output)

    hooks = [block.register_forward_hook(keep) for block in backbone.blocks]
    try:
        input_format.states(backbone, ids, segments, lengths)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(states)


class Features(nn.Module):
    """gamma sum_j s_j h_j with softmax-normalised s (Peters et al. 2018, equation 1), and a biLSTM over it."""

    def __init__(self, config: FeaturesConfig, layers: int, width: int) -> None:
        """For a model of this many layers and of this width."""
        super().__init__()
        self.config = config
        self.width = 2 * config.width
        self.center = nn.Buffer(torch.zeros(layers + 1, width))
        self.spread = nn.Buffer(torch.ones(layers + 1, width))
        self.mix = nn.Parameter(torch.zeros(layers + 1))
        self.gamma = nn.Parameter(torch.ones(()))
        self.drop = nn.Dropout(config.dropout)
        self.ahead, self.back = (nn.LSTM(width, config.width, batch_first=True) for _ in range(2))

    def standardize(self, layers: Tensor, lengths: Tensor) -> None:
        """From now on the states of a layer have the mean 0 and the deviation 1 in each dimension over these rows.

        Tokens often differ little beside what all of them have in common, which would saturate an LSTM. The paper
        suggests layer normalisation for the mix, which leaves that in.
        """
        read = torch.arange(layers.shape[2], device=layers.device) < lengths[:, None]
        states = layers[:, read].to(self.center.dtype)
        self.center.copy_(states.mean(1))
        self.spread.copy_(states.std(1).clamp(min=1e-6))

    def forward(self, layers: Tensor, lengths: Tensor) -> Tensor:
        """States ``[L + 1, B, T, D]`` of rows with these lengths ``[B]`` to ``[B, T, 2 width]``."""
        layers = (layers.to(self.mix.dtype) - self.center[:, None, None]) / self.spread[:, None, None]
        mixed = self.gamma * torch.einsum("l,lbtd->btd", self.mix.softmax(0), layers)
        x = self.drop(mixed)
        # Each row turned around without its padding; packed sequences would have to know the lengths on the host.
        places = torch.arange(x.shape[1], device=x.device)
        turned = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
        return torch.cat((self.ahead(x)[0], rows_at(self.back(rows_at(x, turned))[0], turned)), dim=-1)


class TagChain(nn.Module):
    """A linear-chain CRF: the score of a sequence is the sum of those of its tags and of each tag after another."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.after = nn.Parameter(torch.zeros(tags, tags))
        """``[from, to]``."""

    def log_likelihood(self, scores: Tensor, tags: Tensor, kept: Tensor) -> Tensor:
        """log p of the tags ``[B, P]`` by the scores of all, ``[B, P, C]``, in nats: ``[B]``; ``kept`` [B, P] is true
        at the beginning of each row."""
        first, last, after = (parameter.to(scores.dtype) for parameter in (self.first, self.last, self.after))
        # The sum over all sequences, by the forward algorithm.
        total = first + scores[:, 0]
        for score, inside in zip(scores[:, 1:].unbind(1), kept[:, 1:].unbind(1), strict=True):
            further = (total[:, :, None] + after).logsumexp(1) + score
            total = torch.where(inside[:, None], further, total)
        tags = tags.where(kept, 0)
        own = scores.gather(2, tags[..., None])[..., 0].where(kept, 0).sum(1) + first[tags[:, 0]]
        own = own + after[tags[:, :-1], tags[:, 1:]].where(kept[:, 1:], 0).sum(1)
        ends = tags.gather(1, kept.sum(1, keepdim=True) - 1)[:, 0]
        return own + last[ends] - (total + last).logsumexp(1)

    def best(self, scores: Tensor, kept: Tensor) -> Tensor:
        """The most likely tags ``[B, P]``, by Viterbi's algorithm; arbitrary where ``kept`` [B, P] is false."""
        first, last, after = (parameter.to(scores.dtype) for parameter in (self.first, self.last, self.after))
        total = first + scores[:, 0]
        came: list[Tensor] = []
        stay = torch.arange(scores.shape[2]).expand_as(total)
        for score, inside in zip(scores[:, 1:].unbind(1), kept[:, 1:].unbind(1), strict=True):
            further, before = (total[:, :, None] + after).max(1)
            total = torch.where(inside[:, None], further + score, total)
            came.append(torch.where(inside[:, None], before, stay))
        path = [(total + last).argmax(1)]
        for before in reversed(came):
            path.append(before.gather(1, path[-1][:, None])[:, 0])
        return torch.stack(path[::-1], dim=1)


class ChainedTags(Tags):
    """Tags whose loss and answers are those of a chain over the words of a row."""

    def __init__(self, chain: TagChain) -> None:
        self.chain = chain

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return -self.chain.log_likelihood(outputs, targets, targets != IGNORED).sum()

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        """The most likely tags of the words together, and their probability."""
        words = batch.places != NOWHERE
        tags = self.chain.best(outputs, words)
        together = self.chain.log_likelihood(outputs, tags, words).exp().tolist()
        return [(row[:n], p) for row, n, p in zip(tags.tolist(), words.sum(1).tolist(), together, strict=True)]
