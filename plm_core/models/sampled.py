"""The loss of a softmax over some of the vocabulary, for trainings of small models. For ``plm_core.objectives.loss``.

In a small model most of a step goes into logits: those of a vocabulary of 8,192 cost twice as much as two layers of
width 128. The sum over the vocabulary in a softmax can be estimated from a part of it: Jean et al. 2015 ("On Using Very
Large Target Vocabulary for Neural Machine Translation", section 3) take the tokens of the targets, which are the
frequent ones and those of the subject, and leave out the others. Here some of the others are drawn and stand for all
of them, so that no token's logit grows unnoticed and the estimate of the sum is unbiased.

N targets, V tokens in the vocabulary, D width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.models.output import Output

NEAR = 4
"""How many targets there are for each token that is drawn. They say more than drawn ones, and many are the same."""


def size(count: int, targets: int) -> int:
    """How many logits a position has by ``sampled_nll`` beside that of its target."""
    return min(NEAR * count, targets) + count


def sampled_nll(output: Output, targets: Tensor, count: int, ignored: int) -> Tensor:
    """-log p of each target ``[N]`` by hidden states ``[N, D]``, in float32 at least and zero where it is ``ignored``.

    The sum in the softmax is made of the target itself, the tokens of at most ``NEAR * count`` targets, and ``count``
    tokens that are drawn from the vocabulary and weighted as all that are not among these. Draws from torch's
    generator.
    """
    V, N = len(output.weight), len(targets)
    own = targets.clamp(min=0)
    # Shapes depend on no value, so that nobody waits for a device and one compiled graph will do: a token that stands
    # several times among the targets shares its term out among them.
    most = size(count, N) - count
    near = own[torch.arange(most, device=own.device) * N // most]
    times = torch.zeros(V, device=own.device).scatter_add(0, near, torch.ones(len(near), device=own.device))
    far = torch.randint(V, (count,), device=own.device)
    known = times[far] > 0
    share = (V - (times > 0).sum()) / (~known).sum().clamp(min=1)
    shift = torch.cat((-times[near].log(), share.log().expand(count).masked_fill(known, -math.inf)))

    drawn = torch.cat((near, far))
    logits = F.linear(output.hidden, F.embedding(drawn, output.weight), _chosen(output.bias, drawn))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) + shift
    others = logits.masked_fill(drawn == own[:, None], -math.inf).logsumexp(1)
    logit = (output.hidden * F.embedding(own, output.weight)).sum(1).to(others.dtype)
    if output.bias is not None:
        logit = logit + output.bias[own]
    return (torch.logaddexp(others, logit) - logit).masked_fill(targets == ignored, 0.0)


def _chosen(bias: Tensor | None, tokens: Tensor) -> Tensor | None:
    return None if bias is None else bias[tokens]
