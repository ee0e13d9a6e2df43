"""Masked language modelling and next-sentence prediction. Devlin et al. 2019, section 3.1 and appendix A.1.

A share of the tokens is selected; of those 80 % become MASK, 10 % a random token, 10 % stay, and each is predicted.
With ``next_sentence`` a row is ``CLS A SEP B SEP``, and the first position predicts whether B follows A. Without it, it
is RoBERTa (Liu et al. 2019, section 4): ``CLS text SEP``, packed across documents, with EOS as the separator (their
FULL-SENTENCES). With ``packing: documents`` no text crosses a document (their DOC-SENTENCES): a row holds several
``CLS text SEP`` that do not see each other, each a document or a piece of one without its EOS. In all cases new masks
are drawn each time a row is read. Rows begin and end at tokens, not at sentences.

Shapes: B rows, T positions, N masked positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from plm_core.config import section
from plm_core.objectives.objective import (
    IGNORED,
    Batch,
    Batches,
    Carry,
    Hidden,
    Loss,
    Objective,
    Quantity,
    output_nll,
    summed_nll,
)
from plm_core.text.packing import Packed
from plm_core.text.samplers import Pairs, TokenRange, Windows, draws, items_at, spread, stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import CLS, MASK, PAD, PIECES, SEP, UNK

if TYPE_CHECKING:
    import torch

FOLLOWS, ELSEWHERE = 0, 1
"""The classes of next-sentence prediction, in the order of the released models."""


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Inputs ``[B, T]`` with masks, and the tokens ``[B, N]`` that were there; ``IGNORED`` fills rows with fewer."""

    positions: torch.Tensor
    """The positions of the targets, ``[B, N]``."""
    segments: torch.Tensor
    """0 up to the first SEP, 1 after it, ``[B, T]``."""
    attention_mask: torch.Tensor
    """False where the row is padded, ``[B, T]``."""
    following: torch.Tensor
    """``FOLLOWS`` or ``ELSEWHERE``, ``[B]``; ``IGNORED`` without next-sentence prediction."""

    @property
    def target_positions(self) -> torch.Tensor:
        return self.positions


@dataclass(frozen=True)
class PackedMaskedBatch(MaskedBatch):
    """Documents side by side in rows."""

    documents: torch.Tensor
    """``[B, T]`` int: the document of each position in its row; padding is one more document."""


@section
class Masked(Objective):
    """The masked objective, and its section of the parameters."""

    likelihood = Quantity(
        "pseudo_bits_per_byte",
        scorer="plm_core.evaluation.likelihood.pseudo_bits_per_byte:score",
        meaning="each token given all the others (pseudo-log-likelihood): not a likelihood of the text, and not "
        "comparable with one",
        excerpt=True,
    )
    input_format = "plm_core.finetuning.input_formats:CLS_FIRST"
    filler = "plm_core.evaluation.samples:fill"
    distilled = ("soft", "cosine", "relations")
    frame = (CLS,), (SEP,)
    legend = "<mask: word> is what was read and what was to be predicted; the first may be another word, or the same."

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The share of a row's tokens that are selected."""
    next_sentence: bool = False
    """Pairs of spans, and whether the second follows the first, as in BERT; otherwise packed text, as in RoBERTa."""
    packing: Literal["stream", "documents"] = "stream"
    """What a row of packed text holds: consecutive tokens of the stream, or ``documents`` that do not see each other,
    cut as rarely as possible."""

    def __post_init__(self) -> None:
        if self.next_sentence and self.packing == "documents":
            raise ValueError("packing: documents with next_sentence true; expected stream, as a row is then a pair")

    def text_length(self, context: int) -> int:
        """How many tokens of text a row holds in addition to its special tokens."""
        return context - (3 if self.next_sentence else 2)

    def require_fit(self, config: Any) -> None:
        if (length := self.text_length(config.context)) < 2:
            raise ValueError(
                f"model.context: {config.context} leaves {length} tokens of text per row; expected at least 2"
            )
        if self.next_sentence and not hasattr(config, "segments"):
            raise ValueError("objective.next_sentence: true for a model without segments; expected false")
        if self.next_sentence and config.segments < 2:
            raise ValueError(f"model.segments: {config.segments}; expected at least 2 for objective.next_sentence")

    def batches(self, store: TokenStore, config: Any, rows: int) -> Batches:
        self.require_fit(config)
        length = self.text_length(config.context)
        view: Pairs | Windows | Packed
        if self.packing == "documents":
            view = Packed(store, config.context, margin=1)
        else:
            view = Pairs(store, length) if self.next_sentence else Windows(store, length, length)
        return MaskedRows(
            view, config.context, rows, store.index.vocab_size, self.rate, max_predictions(self.rate, length)
        )

    def loss(self, model: Any, batch: Batch, carry: Carry | None = None) -> Loss:
        """-sum log p(masked token | row), in nats, plus -sum log p(class of the pair | row) times its masked tokens.

        Divided by the number of masked tokens, this is the paper's sum of two means, with rows weighted by length.
        """
        hidden = self.hidden(model, batch)
        return Loss(output_nll(model.output(hidden.states), batch.targets) + hidden.others, batch.num_targets)

    def hidden(self, model: Any, batch: Batch) -> Hidden:
        """States ``[B, N, D]``, and the nats of the classes of pairs, each times the masked tokens of its row."""
        from torch.nn import functional as F

        assert isinstance(batch, MaskedBatch)
        # The first position's state represents the pair.
        at = F.pad(batch.positions, (1, 0)) if self.next_sentence else batch.positions
        if isinstance(batch, PackedMaskedBatch):
            hidden = model(batch.inputs, batch.segments, documents=batch.documents, at=at)
        else:
            # Only pairs have padding, and kernels are faster without a mask.
            attention_mask = batch.attention_mask if self.next_sentence else None
            hidden = model(batch.inputs, batch.segments, attention_mask, at=at)
        if not self.next_sentence:
            return Hidden(hidden, 0.0)
        # A row's single class counts once per masked token, because the total is divided by their number.
        classes = batch.following[:, None].expand_as(batch.targets).where(batch.targets != IGNORED, IGNORED)
        pairs = model.next_sentence(model.pool(hidden))[:, None].expand(*classes.shape, -1)
        return Hidden(hidden[:, 1:], summed_nll(pairs, classes))

    def facts(self, batch: Batch, row: int) -> dict[str, Any]:
        assert isinstance(batch, MaskedBatch)
        return {"b_follows_a": bool(batch.following[row] == FOLLOWS)} if self.next_sentence else {}


def max_predictions(rate: float, length: int) -> int:
    """N, how many predictions a row with this many tokens of text has room for."""
    return max(1, round(rate * length))


def mask(
    ids: np.ndarray, rate: float, vocab_size: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Select round(rate * n) of the n tokens in ``ids`` [T] that are not special, at least one if there are any.

    UNK represents a word and is selected too, as in the released code.

    Returns:
        the ids with 80 % of the selected as MASK and 10 % as a random token; the positions ``[n]`` of the selected, in
        order; their original tokens ``[n]``.
    """
    # Only special tokens are never predicted; UNK belongs to the text.
    candidates = np.flatnonzero((ids >= len(PIECES)) | (ids == UNK))
    chosen = min(len(candidates), max(1, round(rate * len(candidates))))
    positions = np.sort(draw.choice(candidates, chosen, replace=False))
    fate = draw.random(chosen)
    random_tokens = draw.integers(len(PIECES), vocab_size, chosen)
    targets = ids[positions]
    masked = ids.copy()
    # Unchanged tokens are predicted too, so that no model learns that whatever is not MASK is right (section 3.1).
    masked[positions] = np.where(fate < 0.8, MASK, np.where(fate < 0.9, random_tokens, targets))
    return masked, positions, targets


@dataclass(frozen=True)
class MaskedRows(Batches):
    """Rows of a view, with some tokens of each masked: a pair, a window of the stream, or documents."""

    view: Pairs | Windows | Packed
    context: int
    rows: int
    vocab_size: int
    rate: float
    slots: int

    def at(self, seed: int, step: int) -> MaskedBatch:
        return self.share(seed, step, 0, 1)

    def share(self, seed: int, step: int, rank: int, size: int) -> MaskedBatch:
        first = rank * self.rows // size
        places = self._places(seed, step)[first : first + self.rows // size]
        return self._batch(places, stream_seed(seed, "masks"), step, first)

    def held_out(self, count: int) -> list[Batch]:
        places = spread(count, len(self.view)) * (self.view.advance if isinstance(self.view, Windows) else 1)
        return [self._batch(places[i : i + self.rows], 0, i) for i in range(0, len(places), self.rows)]

    def spans(self, seed: int, step: int) -> list[list[TokenRange]]:
        masks = stream_seed(seed, "masks")
        places = self._places(seed, step)
        return [self._row(int(place), draws(masks, step, row))[3] for row, place in enumerate(places)]

    def metrics(self) -> dict[str, float]:
        return self.view.metrics() if isinstance(self.view, Packed) else {}

    def _places(self, seed: int, step: int) -> np.ndarray:
        """Where the rows of a step begin in the stream, or their items of the view."""
        if isinstance(self.view, Windows):
            return self.view.starts_at(seed, step, self.rows)
        return items_at(seed, step, self.rows, len(self.view))

    def _batch(self, places: np.ndarray, seed: int, step: int, first: int = 0) -> MaskedBatch:
        """The rows at these places, the first of which has the number ``first`` in its batch."""
        import torch

        B, T, N = len(places), self.context, self.slots
        inputs = np.full((B, T), PAD)
        parts = np.zeros((B, T), dtype=np.int64)
        attention_mask = np.zeros((B, T), dtype=bool)
        targets = np.full((B, N), IGNORED)
        positions = np.zeros((B, N), dtype=np.int64)
        following = np.full(B, IGNORED)
        for row, place in enumerate(places):
            draw = draws(seed, step, first + row)
            ids, numbers, following[row], _ = self._row(int(place), draw)
            n = len(ids)
            attention_mask[row, :n] = True
            parts[row, :n] = numbers
            parts[row, n:] = numbers[-1] + 1
            inputs[row, :n], masked, tokens = mask(ids, self.rate, self.vocab_size, draw)
            positions[row, : len(masked)], targets[row, : len(masked)] = masked, tokens

        # The parts of a pair are segments, others documents; padding is in the first segment, and one more document.
        segments = np.where(attention_mask, parts, 0) if isinstance(self.view, Pairs) else np.zeros_like(parts)
        columns = [inputs, targets, positions, segments, attention_mask, following]
        if isinstance(self.view, Packed):
            return PackedMaskedBatch(*(torch.from_numpy(column) for column in [*columns, parts]))
        return MaskedBatch(*(torch.from_numpy(column) for column in columns))

    def _row(self, place: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int, list[TokenRange]]:
        """A row before masking, without padding: ids ``[n]``, the part of the row that each is in ``[n]``, the class of
        a pair, and the ranges of the store that its tokens come from."""
        # The texts; ``draw`` decides where a pair is cut and what its B is.
        following = IGNORED
        if isinstance(self.view, Pairs):
            *texts, follows = self.view.places(place, draw)
            following = FOLLOWS if follows else ELSEWHERE
        elif isinstance(self.view, Windows):
            texts = [(place, place + self.view.length)]
        else:
            pieces = self.view.pieces(np.asarray([place]))
            texts = list(zip(pieces.start.tolist(), (pieces.start + pieces.length).tolist(), strict=True))

        # Their frame: `CLS text SEP` for each, or `CLS A SEP B SEP`.
        ids: list[np.ndarray] = []
        numbers: list[int] = []
        spans = []
        for number, (start, stop) in enumerate(texts):
            head = [] if following != IGNORED and number else [CLS]
            spans.append(TokenRange(len(numbers) + len(head), start, stop))
            ids += [np.asarray(head, dtype=np.int64), self.view.store.tokens(start, stop), np.asarray([SEP])]
            numbers += [number] * (len(head) + stop - start + 1)
        return np.concatenate(ids), np.asarray(numbers), following, spans
