"""Examples as the rows that a model reads: a sequence, one for each order or choice, or windows of a long text.

A text that does not fit in the context is read in parts, a sentence whose words are tagged and a text that contains an
answer in overlapping windows. Only pairs, choices and questions are cut, and ``Rows.cut`` counts them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import numpy as np

from plm_core.benchmarks.example_readers import Example, sample
from plm_core.benchmarks.task import KINDS, GlueTask, read_examples
from plm_core.checkpoint import Loaded
from plm_core.config import UserError
from plm_core.corpus.normalize import normalize
from plm_core.finetuning.input_formats import InputFormat, Written, input_format_of
from plm_core.text.samplers import epoch_order, stream_seed
from plm_core.text.tokenizers import Spelling, Tokenizer

SHORTEST_CONTEXT = 8
"""Room for start, delimiter and extract token, and a little text."""
OVERLAP = 0.5
"""The share of a window that the next one reads again. Devlin et al. 2019 advance by 128 of some 320 tokens."""
POOL = 50
"""The number of batches whose examples are sorted by length together, as in the LengthGroupedSampler of transformers:
with more, lengths within a batch are more similar, and batches less random."""


class InputRow(NamedTuple):
    """An example as the model reads it, or a window of one."""

    sequences: list[Written]
    """One sequence; for a pair in both orders, two; for choices, one each."""
    label: float | list[int]
    """The class id, the place of the right choice, or the number to be predicted; the tags of the words at ``places``;
    which of ``places`` the answer begins and ends at; a number for the text of each sequence."""
    places: Sequence[int] = ()
    """The positions to be classified: the first pieces of words; or CLS, then the text that may contain an answer."""
    first: int = 0
    """The number of the first of these words in the sentence, or of these tokens in the text."""
    cut: bool = False
    """Whether some of the example did not fit, and is in none of its rows."""

    @property
    def longest(self) -> int:
        """The tokens of its longest sequence."""
        return max(len(sequence.ids) for sequence in self.sequences)


class Rows(NamedTuple):
    """Examples, and the rows that the model reads."""

    examples: list[Example]
    encoded: list[InputRow]
    owners: list[int]
    """The example of each row, in order: a long one has several."""

    @property
    def cut(self) -> int:
        """The number of examples that were cut."""
        return len({owner for owner, row in zip(self.owners, self.encoded, strict=True) if row.cut})


def read_rows(path: Path, task: GlueTask, most: int | None, pretrained: Loaded) -> Rows:
    """At most ``most`` of the examples in a file (None: all) for a model.

    Raises:
        UserError: the file is damaged, or the model cannot read such examples.
    """
    examples = sample(read_examples(path, task), most)
    context = pretrained.model.config.context
    if context < SHORTEST_CONTEXT:
        raise UserError(f"model.context: {context} is too short to fine-tune on; expected at least {SHORTEST_CONTEXT}")
    rows = encoded(
        examples,
        task,
        input_format_of(pretrained.config.objective, pretrained.config.model),
        pretrained.tokenizer,
        context,
    )
    segments = getattr(pretrained.model.config, "segments", None)
    if segments is not None:
        highest = max(max(row.sequences[0].segments) for row in rows.encoded)
        if highest >= segments:
            raise UserError(f"model.segments: {segments}; expected at least {highest + 1} for this task's pairs")
    return rows


def encoded(
    examples: Sequence[Example], task: GlueTask, input_format: InputFormat, tokenizer: Tokenizer, context: int
) -> Rows:
    """The rows of examples, of at most ``context`` tokens each."""
    head = resolve_name(KINDS[task.kind].head)
    result = Rows([*examples], [], [])
    for i, example in enumerate(examples):
        rows = head.rows(example, task, input_format, tokenizer, context)
        result.encoded.extend(rows)
        result.owners.extend([i] * len(rows))
    return result


def windows(length: int, most: int) -> list[range]:
    """A text of ``length`` tokens in windows of at most ``most`` that overlap by ``OVERLAP``; one if it fits."""
    step = max(1, round(most * (1 - OVERLAP)))
    count = -(-max(0, length - most) // step)
    return [range(start * step, min(start * step + most, length)) for start in range(count + 1)]


def equal_parts(length: int, most: int) -> list[range]:
    """A text of ``length`` tokens in as few parts of at most ``most`` as possible, equally long but for one token."""
    count = max(1, -(-length // most))
    return [range(length * i // count, length * (i + 1) // count) for i in range(count)]


def characters(text: str, spelling: Spelling) -> list[tuple[int, int]]:
    """The first character of each token of a text, and the one after its last.

    They are characters of ``text`` itself, whatever ``normalize`` does. A token that is part of a character is assigned
    the whole character.
    """
    normal, origins = normalize(text), _origins(text)
    ends = [*accumulate(len(character.encode()) for character in normal)]
    spans = []
    stop = 0
    for size in spelling.sizes:
        start = stop
        stop += size
        first, last = bisect_right(ends, start), bisect_left(ends, stop)
        spans.append((origins[first], origins[last + 1] if size else origins[first]))
    return spans


def _origins(text: str) -> list[int]:
    """For each character of ``normalize(text)`` the one of ``text`` that it begins with; last, the end of both."""
    if normalize(text) == text:
        return [*range(len(text) + 1)]
    origins: list[int] = []
    start = 0
    while start < len(text):
        stop = start + 1
        # In Unicode's normal form no ASCII character is composed with one before it.
        while stop < len(text) and not (text[stop].isascii() and text[stop - 1 : stop + 1] != "\r\n"):
            stop += 1
        place = start
        for character in range(len(normalize(text[start:stop]))):
            while len(normalize(text[start : place + 1])) <= character:
                place += 1
            origins.append(place)
        start = stop
    return [*origins, len(text)]


class Batching:
    """Epochs over examples, each read at most once per epoch; a random remainder that fills no batch is skipped.

    If there are fewer examples than a batch holds, they are repeated in it.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        """``lengths`` are those of the examples, in tokens; ``batch`` is the number of examples a step reads."""
        self._lengths = np.asarray(lengths)
        self._batch = batch
        self._seed = seed
        self.epoch = max(1, len(lengths) // batch)
        """The steps of an epoch."""
        self._plan: tuple[int, list[np.ndarray]] = (-1, [])

    def at(self, step: int) -> np.ndarray:
        """The examples ``[batch]`` that a step (from 0) reads: a pure function of seed and step."""
        epoch, place = divmod(step, self.epoch)
        if self._plan[0] != epoch:
            self._plan = (epoch, self._batches(epoch))
        return self._plan[1][place]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        order = np.resize(epoch_order(self._seed, epoch, len(self._lengths)), self.epoch * self._batch)
        pools = [order[start : start + POOL * self._batch] for start in range(0, len(order), POOL * self._batch)]
        alike = np.concatenate([pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools])
        batches = np.split(alike, self.epoch)
        return [batches[i] for i in epoch_order(stream_seed(self._seed, "batches"), epoch, self.epoch)]
