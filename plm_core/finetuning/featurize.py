"""Examples as the rows that a model reads: a sequence, one for each order or choice, or windows of a long text.

Used by the finetune stage. A text that does not fit in the context is read in parts, a sentence whose words are tagged
and a text that contains an answer in overlapping windows. Only pairs, choices and questions are cut if they do not fit,
and ``Rows.cut`` counts them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from plm_core.benchmarks.examples import Example, read_examples, sample
from plm_core.benchmarks.task import GlueTask
from plm_core.checkpoint import Loaded
from plm_core.config import UserError
from plm_core.corpus.normalize import normalize
from plm_core.finetuning.classifier import Row
from plm_core.finetuning.input_formats import InputFormat, begin, framed, input_format_of, room
from plm_core.text.special import CLS, UNK
from plm_core.text.tokenizer import Spelling, Tokenizer

SHORTEST_CONTEXT = 8
"""Room for start, delimiter and extract token, and a little text."""
LONGEST_QUESTION = 64
"""Tokens, as in the released code of Devlin et al. 2019 (``max_query_length``); at most half of the room."""
OVERLAP = 0.5
"""The share of a window that the next one reads again. Devlin et al. 2019 advance by 128 of some 320 tokens."""


class Rows(NamedTuple):
    """Examples, and the rows that the model reads."""

    examples: list[Example]
    encoded: list[Row]
    owners: list[int]
    """The example of each row, in order: a long one has several."""

    @property
    def cut(self) -> int:
        """The number of examples that were cut."""
        return len({owner for owner, row in zip(self.owners, self.encoded, strict=True) if row.cut})


def read_rows(path: Path, task: GlueTask, most: int | None, pretrained: Loaded) -> Rows:
    """At most ``most`` of the examples in a file (None: all) for a model.

    Raises:
        UserError: the file is damaged or empty, or the model cannot read such examples.
    """
    examples = sample(read_examples(path, task), most)
    if not examples:
        raise UserError(
            f"{path}: holds no example; expected at least one: choose another task, or other data (finetune.tasks)"
        )
    context = pretrained.model.config.context
    if context < SHORTEST_CONTEXT:
        raise UserError(f"model.context: {context} is too short to fine-tune on; expected at least {SHORTEST_CONTEXT}")
    rows = encoded(examples, task, input_format_of(pretrained.config.objective), pretrained.tokenizer, context)
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
    found = Rows([*examples], [], [])
    for i, example in enumerate(examples):
        if task.kind == "token_classification":
            rows = _sentence(example, input_format, tokenizer, context)
        elif task.kind == "question_answering":
            rows = _question(example, input_format, tokenizer, context)
        elif pairs := _pairs(example, task, input_format):
            # Texts that are judged together; the second may be one that follows the first.
            texts = [(tokenizer.encode(a), tokenizer.encode(b)) for a, b in pairs]
            sequences = [input_format.write(a, b, context, task.follows) for a, b in texts]
            kept = [room(input_format.pair, len(written.ids)) for written in sequences]
            cut = any(most < len(a) + len(b) for most, (a, b) in zip(kept, texts, strict=True))
            rows = [Row(sequences, example.label, cut=cut)]
        else:
            # A text, or its parts: each is an example with the same label.
            ids = tokenizer.encode(example.a)
            parts = equal_parts(len(ids), room(input_format.single, context))
            single = [framed(input_format.single, {"a": ids[part.start : part.stop]}) for part in parts]
            rows = [Row([written], example.label) for written in single]
        found.encoded.extend(rows)
        found.owners.extend([i] * len(rows))
    return found


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
    found = []
    stop = 0
    for size in spelling.sizes:
        start = stop
        stop += size
        first, last = bisect_right(ends, start), bisect_left(ends, stop)
        found.append((origins[first], origins[last + 1] if size else origins[first]))
    return found


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


def _pairs(example: Example, task: GlueTask, input_format: InputFormat) -> list[tuple[str, str]]:
    """The two texts of each sequence of an example; none for an example of one text."""
    if example.choices:
        return [(example.a, choice if example.b is None else f"{example.b} {choice}") for choice in example.choices]
    if example.b is None:
        return []
    orders = [(example.a, example.b), (example.b, example.a)]
    return orders if task.symmetric and input_format.both_orders else orders[:1]


def _sentence(example: Example, input_format: InputFormat, tokenizer: Tokenizer, context: int) -> list[Row]:
    """Windows of a sentence; each word is classified in the window where its first piece has the most context, the
    smaller of the numbers of tokens before and after it (Devlin et al. 2019, released code, ``_check_is_max_context``).

    A word that the tokenizer drops entirely is UNK.
    """
    ids: list[int] = []
    firsts = []
    for word in example.words:
        firsts.append(len(ids))
        ids += tokenizer.encode(f" {word}" if ids else word) or [UNK]
    parts = windows(len(ids), room(input_format.single, context))
    homes = [max(parts, key=lambda part: min(at - part.start, part.stop - 1 - at)) for at in firsts]
    before = begin(input_format.single, "a", {})
    rows = []
    for part in parts:
        words = [word for word, home in enumerate(homes) if home == part]
        if words:
            written = framed(input_format.single, {"a": ids[part.start : part.stop]})
            places = [before + firsts[word] - part.start for word in words]
            rows.append(Row([written], [example.tags[word] for word in words], places, words[0]))
    return rows


def _question(example: Example, input_format: InputFormat, tokenizer: Tokenizer, context: int) -> list[Row]:
    """A question with windows of its text. If the first right answer is not in a window, CLS is the target."""
    assert example.b is not None
    spelling = tokenizer.spell(example.b)
    most = room(input_format.asked, context)
    whole = tokenizer.encode(example.a)
    question = whole[: min(LONGEST_QUESTION, most // 2)]
    span = _tokens(example, characters(example.b, spelling)) if example.answers else None
    rows = []
    for part in windows(len(spelling.ids), most - len(question)):
        texts = {"a": question, "b": spelling.ids[part.start : part.stop]}
        written = framed(input_format.asked, texts)
        start = begin(input_format.asked, "b", texts)
        inside = span is not None and span[0] in part and span[1] in part
        target = [1 + at - part.start for at in span] if inside and span else [0, 0]
        places = [written.ids.index(CLS), *range(start, start + len(part))]
        rows.append(Row([written], target, places, part.start, cut=len(question) < len(whole)))
    return rows


def _tokens(example: Example, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first and the last token of the first right answer; None if it has no token."""
    answer = example.answers[0]
    first = next((i for i, (_, stop) in enumerate(spans) if stop > answer.start), len(spans))
    last = next((i for i, (start, _) in enumerate(spans) if start >= answer.start + len(answer.text)), len(spans)) - 1
    return (first, last) if first <= last else None
