"""The text that is scored, the score of a document, and sums that are divided once: shared by all likelihoods.

Bits per byte divides by the UTF-8 bytes of the text, so that models with different tokenizers can be compared (Gao et
al. 2020, "The Pile", section 3.1); perplexity per token cannot.

Shapes: R rows, T positions, D width.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from plm_core.objectives.objective import AT_ONCE
from plm_core.text.tokenizers import EOS, PAD, Tokenizer

TEXTS_AT_ONCE = 16
"""The number of documents that a model with memory reads side by side."""
BATCHES_AT_ONCE = 8
"""For other models, documents are collected to about this many batches, so that windows of one length share a batch."""


@dataclass(frozen=True)
class Text:
    """A document, or its beginning, as tokens, with the text length of each."""

    ids: list[int]
    """Without any special token."""
    sizes: list[int]
    """The UTF-8 bytes of the text that each token covers."""
    starts: list[bool]
    """Whether a word begins with this token."""
    ended: bool = True
    """Whether the document ends here, and EOS is its next token."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def first(self, most: int | None) -> Self:
        """The first ``most`` tokens; all for None."""
        if most is None or most >= len(self.ids):
            return self
        return replace(self, ids=self.ids[:most], sizes=self.sizes[:most], starts=self.starts[:most], ended=False)

    def sequence(self, device: torch.device) -> torch.Tensor:
        """EOS, the tokens, and EOS again if the document ends here: a 1-D tensor of ids."""
        return torch.tensor([EOS, *self.ids, EOS][: None if self.ended else -1], device=device)


def tokenized(text: str, tokenizer: Tokenizer) -> Text:
    """The tokens of ``normalize(text)``."""
    return Text(*tokenizer.spell(text))


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a document, its excerpt, or a set of them."""

    nats: float
    """-sum log p over the predictions, in nats."""
    tokens: int
    bytes: int
    """The UTF-8 bytes of the tokens that were predicted."""

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """For causal models, and comparable only between those with the same tokenizer."""
        return math.exp(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float:
        """Comparable within one quantity, for models of any tokenizer."""
        return self.nats / math.log(2) / self.bytes


def sum_scores(scores: Iterable[Likelihood]) -> Likelihood:
    """Sum the scores of documents."""
    rows = list(scores)
    return Likelihood(
        math.fsum(row.nats for row in rows), sum(row.tokens for row in rows), sum(row.bytes for row in rows)
    )


def windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """``(start, first, stop)``: read tokens [start, stop), take the predictions of [first, stop); each token once.

    All windows of a text longer than the context, including the last, are as long as the context.
    """
    scored = 0
    while scored < length:
        stop = min(length, context if scored == 0 else scored + stride)
        yield max(0, stop - context), scored, stop
        scored = stop


@dataclass(frozen=True)
class Segment:
    """The next tokens of several texts, side by side: R rows of T positions."""

    live: list[int]
    """Which texts, the longest first. Those of the next segment are the first of these."""
    ids: torch.Tensor
    """``[R, T]``."""
    attention_mask: torch.Tensor
    """``[R, T]``, false after the end of a text."""
    given: int
    """How many of the first positions are not predicted: they already were, or they begin the text."""

    def nats(self, model: Any, hidden: torch.Tensor) -> list[float]:
        """-sum log p of each row's predicted tokens by hidden states ``[R, T - given, D]``, added up in double
        precision."""
        nats = token_nats(model, hidden, self.ids[:, self.given :])
        return (nats * self.attention_mask[:, self.given :]).sum(dim=1).tolist()


def side_by_side(sequences: Sequence[torch.Tensor], length: int, advance: int) -> Iterator[Segment]:
    """Texts ``[n]`` cut into rows of ``length`` positions, each beginning ``advance`` after the one before.

    Each token of a text but its first is to be predicted once.
    """
    order = sorted(range(len(sequences)), key=lambda text: -len(sequences[text]))
    start, given = 0, 1
    while live := [text for text in order if start + given < len(sequences[text])]:
        parts = [sequences[text][start : start + length] for text in live]
        sizes = torch.tensor([len(part) for part in parts], device=parts[0].device)
        ids = pad_sequence(parts, batch_first=True, padding_value=PAD)
        yield Segment(live, ids, torch.arange(ids.shape[1], device=ids.device) < sizes[:, None], given)
        start += advance
        given = length - advance


def token_nats(model: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log p of the targets ``[R, T]`` by a model's hidden states ``[R, T, D]``, in double precision, to be added up.

    At most ``AT_ONCE`` logits are in memory: 16 rows of 4,096 positions and 50,304 tokens would take 12 GiB.
    """
    size = max(1, AT_ONCE // model.config.vocab_size)
    parts = zip(hidden.flatten(0, 1).split(size), targets.flatten().split(size), strict=True)
    nats = [F.cross_entropy(model.logits(some), ids, reduction="none").double() for some, ids in parts]
    return torch.cat(nats).view(targets.shape)


def group_texts(texts: Iterable[Text], of: Callable[[Text], int] | None = None, batch: int = 1) -> Iterator[list[Text]]:
    """The texts in groups of ``TEXTS_AT_ONCE`` or, if ``of`` is the number of positions to be read for a text and
    ``batch`` that of a batch, in groups that end as soon as they fill ``BATCHES_AT_ONCE`` batches."""
    most = BATCHES_AT_ONCE * batch if of else TEXTS_AT_ONCE
    group: list[Text] = []
    filled = 0
    for text in texts:
        group.append(text)
        filled += of(text) if of else 1
        if filled >= most:
            yield group
            group = []
            filled = 0
    if group:
        yield group


def read_in_batches(
    texts: int,
    windows: Iterable[tuple[tuple[int, ...], tuple[int, ...]]],
    nats_of: Callable[..., torch.Tensor],
    positions: int,
) -> list[float]:
    """The summed nats of each of ``texts`` texts, read in windows, which are batched by shape.

    A window has a shape, which begins with its length, and a place, which begins with the text's number; ``nats_of``
    gives the nats ``[R]`` of R places of one shape. A batch has at most this many ``positions``, or one window.
    """
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for shape, place in windows:
        alike.setdefault(shape, []).append(place)
    nats: list[list[float]] = [[] for _ in range(texts)]
    for shape, places in alike.items():
        rows = max(1, positions // shape[0])
        for some in (places[i : i + rows] for i in range(0, len(places), rows)):
            for (text, *_), row_nats in zip(some, nats_of(shape, some).tolist(), strict=True):
                nats[text].append(row_nats)
    return [math.fsum(text_nats) for text_nats in nats]


@torch.no_grad()
def score_documents(
    groups: Iterable[list[Text]], device: torch.device, nats_of: Callable[[list[torch.Tensor]], Iterable[float]]
) -> Iterator[Likelihood]:
    """Score whole documents by the nats of their sequences, group by group."""
    for group in groups:
        sequences = [text.sequence(device) for text in group]
        for text, sequence, nats in zip(group, sequences, nats_of(sequences), strict=True):
            yield Likelihood(nats, len(sequence) - 1, text.bytes)
