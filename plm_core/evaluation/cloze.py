"""Blanks filled by a model that cannot continue a text: its samples. Used by the evaluate stage.

Taylor 1953, "Cloze Procedure"; Devlin et al. 2019, section 3.1. Shapes: T positions, V vocabulary.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import torch

from plm_core.objectives import OBJECTIVES
from plm_core.sections.evaluation import around
from plm_core.text.special import CLS, MASK, PIECES, SEP
from plm_core.text.tokenizer import Tokenizer
from plm_core.training.device import Device

Filler = Callable[[Any, Tokenizer, str, Device], list[tuple[str, float]]]
"""A model, its tokenizer and a text with one blank to pieces for it and their probabilities, the most likely first."""
MOST = 5
"""The number of pieces for a blank."""


def filler_of(objective: str) -> Filler | None:
    """How models that were trained by the objective with this name fill a blank; None: they do not."""
    place = OBJECTIVES[objective].filler
    return None if place is None else resolve_name(place)


@torch.no_grad()
def fill(model: Any, tokenizer: Tokenizer, text: str, device: Device) -> list[tuple[str, float]]:
    """The ``MOST`` most likely pieces for the blank ``___`` in a text, with their probabilities, in descending order.

    The blank is one MASK, so it is filled by one piece, which begins with a space if the blank does. Special tokens do
    not fill blanks.

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
    logits = model.predict(ids, torch.tensor([[len(start)]], device=device.device))[0, 0]
    logits[: len(PIECES)] = float("-inf")
    probabilities, tokens = logits.softmax(dim=-1).topk(MOST)
    return [(tokenizer.piece(token), p) for token, p in zip(tokens.tolist(), probabilities.tolist(), strict=True)]
