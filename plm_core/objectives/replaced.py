"""Replaced token detection: which tokens are not the text's own? Clark et al. 2020 (ELECTRA), section 2.

A share of the tokens becomes MASK, and the generator learns to predict them like a masked model. Each MASK is then
replaced by a sample from its prediction, and the discriminator learns to decide for every token of the row whether it
differs from the text's: a sample that happens to be right counts as original. No gradient flows through the sample.

Rows are RoBERTa's: ``CLS text SEP``, packed across documents, because there is no next-sentence prediction (section
3.1).

Shapes: B rows, T positions, N masked positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, PositiveFloat

from plm_core.config import section
from plm_core.objectives.masked import MaskedBatch, MaskedRows, max_predictions
from plm_core.objectives.objective import IGNORED, Batch, Batches, Carry, Loss, Objective, Quantity, summed_nll
from plm_core.text.samplers import Windows, draws, stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import CLS, MASK, SEP

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FRAMED = 2
"""The special tokens of a row."""
PARTS = 1 << 40
"""The resolution of probabilities when sampling."""


@dataclass(frozen=True)
class ReplacedBatch(MaskedBatch):
    """A masked batch, and the random numbers for the generator's samples."""

    chances: torch.Tensor
    """``[B, N]``, float64 in [0, 1): where in the cumulative probabilities a sample is taken."""


@section
class Replaced(Objective):
    """Replaced token detection, and its section of the parameters."""

    likelihood = Quantity(
        "generator_pseudo_bits_per_byte",
        scorer="plm_core.evaluation.likelihood.pseudo_bits_per_byte:score",
        meaning="each token given all the others, by the generator: not a likelihood of the text, and it says little "
        "about the discriminator, the part that is fine-tuned",
        excerpt=True,
    )
    input_format = "plm_core.finetuning.input_formats:CLS_FIRST"
    filler = "plm_core.evaluation.samples:fill"
    frame = (CLS,), (SEP,)
    legend = "<mask: word> was to be predicted by the generator; the discriminator read its guess in the mask's stead."

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The share of a row's tokens that are masked. The paper's large model masks 0.25."""
    weight: PositiveFloat = 50.0
    """Lambda, the weight of a token's detection relative to a masked token's prediction."""

    def require_fit(self, config: Any) -> None:
        if config.context < FRAMED + 2:
            raise ValueError(f"model.context: {config.context}; expected at least {FRAMED + 2}, for two tokens of text")

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        self.require_fit(config)
        length = config.context - FRAMED
        view = Windows(store, length, length)
        return _Rows(view, config.context, rows, store.index.vocab_size, self.rate, max_predictions(self.rate, length))

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(masked token | row), in nats, plus ``weight`` times the discriminator's binary cross entropy.

        The latter is the mean over the tokens of a row, times its masked tokens. So the loss divided by the number of
        masked tokens is the paper's L_MLM + lambda L_Disc, with rows weighted by their masked tokens.
        """
        import torch
        from torch.nn import functional as F

        assert isinstance(batch, ReplacedBatch)
        # The generator predicts the masked tokens, and its samples take their place, without a gradient.
        logits = model.predict(batch.inputs, batch.positions)
        chosen = batch.targets != IGNORED
        masked = batch.inputs.gather(1, batch.positions)  # where nothing is chosen: the token itself
        text = batch.inputs.scatter(1, batch.positions, torch.where(chosen, batch.targets, masked))
        guess = torch.where(chosen, sampled(logits.detach(), batch.chances), masked)
        read = batch.inputs.scatter(1, batch.positions, guess)
        # The discriminator reads plausible words and no MASK, which it would never meet in a task.
        replaced = model.detect(model(read, batch.segments))
        replaced = replaced.to(torch.promote_types(replaced.dtype, torch.float32))
        nll = F.binary_cross_entropy_with_logits(replaced, (read != text).to(replaced.dtype), reduction="none")
        # By rows, so that the loss of a batch is the sum over its rows however it is split into micro-batches.
        detection = (nll.mean(1) * chosen.sum(1)).sum()
        return Loss(summed_nll(logits, batch.targets) + self.weight * detection, batch.num_targets)


def sampled(logits: Tensor, chances: Tensor) -> Tensor:
    """Tokens ``[...]`` sampled from the softmax of logits ``[..., V]`` with chances ``[...]`` in [0, 1).

    Probabilities are added up exactly, as integers: so a sample does not depend on the order of addition, and the sum
    is supported on a GPU in deterministic mode.
    """
    import torch

    parts = (logits.double().softmax(-1) * PARTS).long().cumsum(-1)
    place = (chances * parts[..., -1]).long()
    return torch.searchsorted(parts, place[..., None], right=True)[..., 0]


@dataclass(frozen=True)
class _Rows(MaskedRows):
    def _batch(self, items: np.ndarray, seed: int, step: int, first: int = 0) -> ReplacedBatch:
        import torch

        batch = super()._batch(items, seed, step, first)
        chosen = batch.targets != IGNORED
        rows = torch.arange(len(items))[:, None].expand_as(chosen)
        # Every selected token is masked (section 2), unlike in BERT, which keeps some.
        batch.inputs[rows[chosen], batch.positions[chosen]] = MASK
        seed = stream_seed(seed, "samples")
        chances = np.stack([draws(seed, step, first + row).random(self.slots) for row in range(len(items))])
        return ReplacedBatch(**vars(batch), chances=torch.from_numpy(chances))
