"""How an example is written for a model, and which states represent it.

A model reads an example as it read its pretraining text, so the input format depends on its objective, not its
architecture. Shapes: B rows, T positions, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from plm_core.objectives import OBJECTIVES
from plm_core.text.tokenizers import BOS, CLS, EOS, SEP

Part = tuple[int | Literal["a", "b"], int]
"""A special token, or the place of a text; and its segment."""


class Written(NamedTuple):
    """A sequence as a model reads it."""

    ids: list[int]
    segments: list[int]
    """The segment of each token."""


@dataclass(frozen=True)
class InputFormat:
    """How the sequences of examples are written and read."""

    single: tuple[Part, ...]
    """An example of one text."""
    pair: tuple[Part, ...]
    """An example of two texts."""
    question: tuple[Part, ...]
    """A question (a) and the text that contains its answer (b)."""
    states: Callable[[Any, Tensor, Tensor, Tensor], Tensor]
    """``(model, ids [B, T], segments [B, T], lengths [B])`` to the state of each position, ``[B, T, D]``."""
    summary: Callable[[Any, Tensor, Tensor], Tensor]
    """``(model, states [B, T, D], lengths [B])`` to one vector per row, ``[B, D]``."""
    projected: bool
    """Whether there is a new tanh layer between the summary and the classes."""
    both_orders: bool = False
    """Whether a pair of texts whose order does not matter is read in both orders, adding up the two summaries."""
    predicts_next: bool = False
    """Whether the state of each token predicts the next one, so that the language model's loss can be added to the
    task's."""
    writer: str | None = None
    """How such a model writes a text as an answer: a ``plm_core.finetuning.text_writer.Writer``. None: it cannot."""
    unread: tuple[int, ...] = ()
    """Special tokens that pretraining never reads, so that the softmax has pushed their embeddings in one direction."""

    def write(self, a: Sequence[int], b: Sequence[int], context: int, follows: bool = False) -> Written:
        """Write two texts in at most ``context`` tokens. The longer one is cut first, at its end; but ``a`` is cut
        at its beginning if ``b`` ``follows``, that is, if it is to be judged as the continuation of ``a``."""
        most = free_positions(self.pair, context)
        of_a, of_b = len(a), len(b)
        while of_a + of_b > most:
            of_a, of_b = (of_a - 1, of_b) if of_a > of_b else (of_a, of_b - 1)
        return encode_parts(self.pair, {"a": a[len(a) - of_a :] if follows else a[:of_a], "b": b[:of_b]})


def free_positions(parts: Sequence[Part], context: int) -> int:
    """How many tokens of text fit in addition to the special ones."""
    return context - sum(isinstance(part, int) for part, _ in parts)


def encode_parts(parts: Sequence[Part], texts: Mapping[str, Sequence[int]]) -> Written:
    """The ids and segments of ``parts``, with the texts in their places."""
    spans = [(texts[part] if isinstance(part, str) else [part], segment) for part, segment in parts]
    return Written([i for ids, _ in spans for i in ids], [s for ids, s in spans for _ in ids])


def text_position(parts: Sequence[Part], text: str, texts: Mapping[str, Sequence[int]]) -> int:
    """The position of the first token of a text."""
    position = 0
    for part, _ in parts:
        if part == text:
            break
        position += len(texts[part]) if isinstance(part, str) else 1
    return position


def _encoded(model: Any, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    return model.encode(ids, segments, torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])


def _read_both_ways(model: Any, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    attention_mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    return model.read(ids, attention_mask, bidirectional=torch.ones_like(lengths, dtype=torch.bool))


def _last(model: Any, states: Tensor, lengths: Tensor) -> Tensor:
    return states[torch.arange(len(states), device=states.device), lengths - 1]


def mean_state(states: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each row's states ``[B, T, D]``, without padding: ``[B, D]``, in float32 at least."""
    read = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
    exact = states.to(torch.promote_types(states.dtype, torch.float32)).where(read[..., None], 0)
    return exact.sum(1) / lengths[:, None]


EXTRACT = InputFormat(
    single=((BOS, 0), ("a", 0), (CLS, 0)),
    pair=((BOS, 0), ("a", 0), (SEP, 0), ("b", 0), (CLS, 0)),
    # The question first, so that the text is read with it in mind.
    question=((BOS, 0), ("a", 0), (SEP, 0), ("b", 0), (CLS, 0)),
    # Padding comes last, where no relevant position attends to it.
    states=lambda model, ids, *_: model.read(ids),
    summary=_last,
    projected=False,
    both_orders=True,
    predicts_next=True,
    writer="plm_core.finetuning.text_writer:AFTER_PROMPT",
    unread=(BOS, SEP, CLS),
)
"""Radford et al. 2018, section 3.3: start, text, extract; start, A, delimiter, B, extract, for similarity in both
orders; the extract token's state. The embeddings of these tokens begin at random."""

EXTRACT_BIDIRECTIONAL = replace(EXTRACT, states=_read_both_ways, both_orders=False, predicts_next=False)
"""``EXTRACT`` for decoders that can read in both directions: every token sees both texts, so one order is enough. Such
models are fine-tuned as encoders (Charpentier and Samuel 2024, the released code; there by the first token's state)."""

CLS_FIRST = InputFormat(
    single=((CLS, 0), ("a", 0), (SEP, 0)),
    pair=((CLS, 0), ("a", 0), (SEP, 0), ("b", 1), (SEP, 1)),
    question=((CLS, 0), ("a", 0), (SEP, 0), ("b", 1), (SEP, 1)),
    states=_encoded,
    summary=lambda model, states, _: model.pool(states),
    projected=False,
)
"""Devlin et al. 2019, figure 4: the first token's state through the model's pooler."""

CLS_LAST = InputFormat(
    single=(("a", 0), (SEP, 0), (CLS, 2)),
    pair=(("a", 0), (SEP, 0), ("b", 1), (SEP, 1), (CLS, 2)),
    question=(("b", 0), (SEP, 0), ("a", 1), (SEP, 1), (CLS, 2)),
    states=_encoded,
    summary=_last,
    projected=True,
)
"""Yang et al. 2019, section 2.5 and the released code: CLS is last, and its content state goes through a new layer."""


ENCODED = InputFormat(
    single=(("a", 0), (EOS, 0)),
    pair=(("a", 0), (EOS, 0), ("b", 0), (EOS, 0)),
    question=((CLS, 0), ("a", 0), (EOS, 0), ("b", 0), (EOS, 0)),
    states=_encoded,
    summary=lambda model, states, lengths: mean_state(states, lengths),
    projected=False,
    writer="plm_core.finetuning.text_writer:FROM_SOURCE",
)
"""The encoder of an encoder-decoder: each text ends as its rows do in training, and the mean of the states represents
the example (Ni et al. 2022, "Sentence-T5", section 3.2). CLS means no answer, as in ``CLS_FIRST``."""

BETWEEN_ENDS = InputFormat(
    single=((BOS, 0), ("a", 0), (EOS, 0)),
    pair=((BOS, 0), ("a", 0), (EOS, 0), ("b", 0), (EOS, 0)),
    question=((CLS, 0), ("a", 0), (EOS, 0), ("b", 0), (EOS, 0)),
    states=_encoded,
    summary=lambda model, states, lengths: mean_state(states, lengths),
    projected=False,
)
"""Peters et al. 2018 and the released code: a text between the marks of a sentence. How a text becomes one vector is
left to the model of a task there; here it is the mean state."""


def input_format_of(objective: str, model: Mapping[str, Any] = MappingProxyType({})) -> InputFormat:
    """The input format for models that were trained with the objective of this name.

    A ``model`` whose configuration says so has more separators, as in RoBERTa, or fewer segments.
    """
    usual: InputFormat = resolve_name(OBJECTIVES[objective].input_format)
    more = model.get("separators", 1) - 1
    alike = model.get("segments", 2) < 2

    def fitted(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        first = next((i for i, (part, _) in enumerate(parts) if part == SEP), 0)
        parts = (*parts[:first], *parts[first : first + 1] * more, *parts[first:])
        return tuple((part, 0) for part, _ in parts) if alike else parts

    if not more and not alike:
        return usual
    single = tuple((part, 0) for part, _ in usual.single) if alike else usual.single
    return replace(usual, single=single, pair=fitted(usual.pair), question=fitted(usual.question))
