"""Blanks filled by a masked model: the samples of one that cannot continue a text. Used by the evaluate stage.

Taylor 1953, "Cloze Procedure"; Devlin et al. 2019, section 3.1. Shapes: T positions, V vocabulary.
"""

from typing import Any

import torch

from plm_core.sections.evaluation import around
from plm_core.text.special import CLS, MASK, PIECES, SEP
from plm_core.text.tokenizer import Tokenizer
from plm_core.training.device import Device


@torch.no_grad()
def fill(model: Any, tokenizer: Tokenizer, text: str, device: Device, most: int = 5) -> list[tuple[str, float]]:
    """The ``most`` likeliest pieces for the blank ``___`` in a text, with their probabilities, the likeliest first.

    The blank is one MASK, so one piece, which begins with a space where the blank does. Special tokens fill no blank.

    Raises:
        ValueError: the text has not exactly one blank, or is longer than the model's context.
    """
    before, after = (tokenizer.encode(part) for part in around(text))
    start = [CLS, *before]
    ids = torch.tensor([[*start, MASK, *after, SEP]], device=device.device)
    if ids.shape[1] > model.config.context:
        raise ValueError(
            f"cloze: {text!r} is {ids.shape[1]} tokens long; expected at most the model's context, "
            f"{model.config.context}"
        )
    model.eval()
    logits = model.logits(model.encode(ids)[0, len(start)])
    logits[: len(PIECES)] = float("-inf")
    probabilities, tokens = logits.softmax(dim=-1).topk(most)
    return [(tokenizer.piece(token), p) for token, p in zip(tokens.tolist(), probabilities.tolist(), strict=True)]
