"""How an example is written down for a model, and which of its states stand for it: a row an objective.

A model reads an example as it read its pretraining text, so what it was trained to do decides, not its architecture.
Shapes: B rows, T positions, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from plm_core.finetuning.examples import Example
from plm_core.text.special import BOS, CLS, SEP
from plm_core.text.tokenizer import Tokenizer

Part = tuple[int | Literal["a", "b"], int]
"""A special token, or the place of a text; and its segment."""


@dataclass(frozen=True)
class Layout:
    """A row."""

    single: tuple[Part, ...]
    """An example of one text."""
    pair: tuple[Part, ...]
    """An example of two texts."""
    summary: Callable[[Any, Tensor, Tensor, Tensor], Tensor]
    """``(model, ids [B, T], segments [B, T], lengths [B])`` to one vector a row, ``[B, D]``."""
    projected: bool
    """Whether a new tanh layer stands between the summary and the classes."""

    def write(self, example: Example, tokenizer: Tokenizer, context: int) -> tuple[list[int], list[int]]:
        """The ids and segments of an example, at most ``context``; the longer text is cut first, at its end."""
        parts = self.single if example.b is None else self.pair
        texts = {"a": tokenizer.encode(example.a), "b": tokenizer.encode(example.b or "")}
        room = context - sum(isinstance(part, int) for part, _ in parts)
        while len(texts["a"]) + len(texts["b"]) > room:
            max(texts["b"], texts["a"], key=len).pop()
        spans = [(texts[part] if isinstance(part, str) else [part], segment) for part, segment in parts]
        return [i for ids, _ in spans for i in ids], [s for ids, s in spans for _ in ids]


def _last_read(model: Any, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    hidden = model.read(ids)[0]  # padding stands behind, where nothing that counts looks
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]


def _first_pooled(model: Any, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    return model.pool(model.encode(ids, segments, _kept(ids, lengths)))


def _last_of_all(model: Any, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    hidden = model.encode(ids, segments, _kept(ids, lengths))
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]


def _kept(ids: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]


LAYOUTS: dict[str, Layout] = {
    # Radford et al. 2018, section 3.3: start, text, extract; start, A, delimiter, B, extract. The extract token's
    # state.
    "causal": Layout(
        single=((BOS, 0), ("a", 0), (CLS, 0)),
        pair=((BOS, 0), ("a", 0), (SEP, 0), ("b", 0), (CLS, 0)),
        summary=_last_read,
        projected=False,
    ),
    # Devlin et al. 2019, figure 4: the first token's state through the pretrained pooler.
    "masked": Layout(
        single=((CLS, 0), ("a", 0), (SEP, 0)),
        pair=((CLS, 0), ("a", 0), (SEP, 0), ("b", 1), (SEP, 1)),
        summary=_first_pooled,
        projected=False,
    ),
    # Yang et al. 2019, section 2.5 and the released code: CLS is last, and its content state goes through a new layer.
    "permutation": Layout(
        single=(("a", 0), (SEP, 0), (CLS, 2)),
        pair=(("a", 0), (SEP, 0), ("b", 1), (SEP, 1), (CLS, 2)),
        summary=_last_of_all,
        projected=True,
    ),
}
