"""From logits to the probabilities by which the next token is drawn. Used by ``continue_ids``.

Sources: temperature (Ackley, Hinton, Sejnowski 1985), top-k (Fan, Lewis, Dauphin 2018), top-p (Holtzman, Buys, Du,
Forbes, Choi 2020, section 3.1), repetition penalty (Keskar, McCann, Varshney, Xiong, Socher 2019, section 4.1).
Shapes: B rows, V vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.shared.sampling import SamplingConfig


def distribution(logits: Tensor, seen: Tensor, config: SamplingConfig) -> Tensor:
    """Logits ``[B, V]`` to the probabilities ``[B, V]`` by which the next token is drawn.

    ``seen`` [B, V] is true for the tokens in the prompt or the text. The order is: penalty, temperature, top-k, top-p.
    """
    logits = penalised(logits, seen, config.repetition_penalty)
    if config.temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    # The largest is shifted to 0 first; otherwise a low temperature would make it infinite.
    shifted = logits - logits.amax(-1, keepdim=True)
    probabilities = torch.softmax(shifted / config.temperature, dim=-1)
    if config.top_k:
        probabilities = top_k(probabilities, config.top_k)
    if config.top_p < 1:
        probabilities = top_p(probabilities, config.top_p)
    return probabilities


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits ``[B, V]`` with those of ``seen`` [B, V] reduced by the factor ``penalty``.

    Keskar et al. 2019 divide; that would raise a negative logit, so it is multiplied.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def top_k(probabilities: Tensor, k: int) -> Tensor:
    """Probabilities ``[B, V]`` of the k most likely tokens of each row, renormalised; others are zero."""
    values, ids = probabilities.topk(min(k, probabilities.shape[-1]))
    return _only(probabilities, ids, values)


def top_p(probabilities: Tensor, mass: float) -> Tensor:
    """Probabilities ``[B, V]`` of the fewest tokens that together reach ``mass``, renormalised; others are zero."""
    values, ids = probabilities.sort(descending=True, stable=True)
    before = F.pad(values.cumsum(-1)[:, :-1], (1, 0))
    return _only(probabilities, ids, values.masked_fill(before >= mass, 0.0))


def _only(probabilities: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    kept = torch.zeros_like(probabilities).scatter(-1, ids, values)
    return kept / kept.sum(-1, keepdim=True)
