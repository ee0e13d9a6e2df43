"""How a model learns each kind of task: the rows it reads, the input of the head, the loss, and the answers.

Shapes: B rows, K sequences a row, T positions, P places of a row, C outputs. A place is a position to be classified.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.config import UserError
from plm_core.evaluation.answers import parts_of
from plm_core.evaluation.example_counts import answer_f1, exact_match, ranks
from plm_core.finetuning.featurize import InputRow, Rows, characters, equal_parts, windows
from plm_core.finetuning.input_formats import InputFormat, encode_parts, free_positions, text_position
from plm_core.objectives.objective import IGNORED, Batch, summed_nll
from plm_core.shared.files import sha256_text
from plm_core.text.tokenizers import CLS, EOS, UNK, Tokenizer

LONGEST_ANSWER = 30
"""The most tokens of an answer, as in the released code of Devlin et al. 2019 (``max_answer_length``)."""
LONGEST_QUESTION = 64
"""Tokens, as in the released code of Devlin et al. 2019 (``max_query_length``); at most half of the room."""
TEMPERATURE = 0.05
"""The temperature that divides cosines in the loss, as in Gao et al. 2021, section 3, and sentence-transformers."""
NOWHERE = NO_TOKEN = -1
"""The position that fills up a row's places, and the id that fills up a text."""
TEXT_MULTIPLE = 8
"""The lengths to which texts are padded are multiples of it."""


@dataclass(frozen=True)
class ExampleBatch(Batch):
    """Padded rows: ``inputs`` [B, K, T] token ids, ``targets`` [B], classes or numbers."""

    segments: Tensor
    """The segment of each token, ``[B, K, T]``."""
    lengths: Tensor
    """The tokens of each sequence, ``[B, K]``; padding comes after them."""

    @property
    def num_targets(self) -> Tensor:
        """Scalar: the number of rows, because any number may be a target here."""
        return torch.full((), len(self.targets), device=self.targets.device)  # a copy would wait for the device


@dataclass(frozen=True)
class SpanBatch(ExampleBatch):
    """Questions with windows of their texts: ``targets`` [B, 2], the places where the answer begins and ends."""

    places: Tensor
    """The position of each place, ``[B, P]``, filled up with ``NOWHERE``."""


@dataclass(frozen=True)
class TagBatch(SpanBatch):
    """Windows of sentences: ``targets`` [B, P], the tag of the word at each place."""

    num_targets = Batch.num_targets  # words


class Predicted(NamedTuple):
    """A model's answers to rows, in order, or to examples."""

    answers: list[Any]
    """For rows: the log-probabilities of the classes or choices; numbers; the tags of the words at ``places``; an
    ``AnswerSpan``; or the vectors of the sequences. For examples: the result of ``example_answers``."""
    confidences: list[float]
    """The probability of each answer: of all tags of a row or example together; NaN if there is none, or if the answer
    of a row contains it."""
    loss: float
    """The mean loss per row or word, in nats or squared units of the rows' labels, without the language model's
    loss."""


class AnsweredRows(NamedTuple):
    """The rows of one example, and what a model predicted for each."""

    example: Example
    rows: list[InputRow]
    answers: list[Any]
    confidences: list[float]
    tokenizer: Tokenizer


def answered_rows(rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> Iterator[AnsweredRows]:
    """The rows with what was predicted for them, example by example."""
    own: list[list[int]] = [[] for _ in rows.examples]
    for row, owner in enumerate(rows.owners):
        own[owner].append(row)
    for example, chosen in zip(rows.examples, own, strict=True):
        answers, confidences = ([values[row] for row in chosen] for values in predicted[:2])
        yield AnsweredRows(example, [rows.encoded[row] for row in chosen], answers, confidences, tokenizer)


class Scale(NamedTuple):
    """The unit in which numbers are learned: standard deviations of the training examples' labels, from their mean.

    A head begins near 0 and moves in small steps, so it would not reach prices or years.
    """

    mean: float = 0.0
    deviation: float = 1.0
    """Above 0."""

    def standardized(self, rows: Rows) -> Rows:
        """The same rows, with labels in this unit; the examples keep theirs."""
        if self == Scale():
            return rows
        labels = ((rows.examples[owner].label - self.mean) / self.deviation for owner in rows.owners)
        encoded = [row._replace(label=label) for row, label in zip(rows.encoded, labels, strict=True)]
        return rows._replace(encoded=encoded)

    @torch.no_grad()
    def fold(self, head: nn.Sequential) -> None:
        """Make a head that has learned standardized labels output the numbers themselves, in place."""
        if self == Scale():
            return
        linear = head[-1]
        assert isinstance(linear, nn.Linear)
        linear.weight.mul_(self.deviation)
        linear.bias.mul_(self.deviation).add_(self.mean)


class TaskHead:
    """How a kind of task is learned. This class is for classes: -sum log p(class), in nats (Radford et al. 2018,
    equation 4)."""

    reads: Literal["row", "sequence", "place", "mean", "text"] = "row"
    """The input of the head: the sum of the summaries of a row's sequences, each summary, the states of places, or the
    mean state of each sequence; or none, because the answer is a text."""
    batch: type[ExampleBatch] = ExampleBatch

    def rows(
        self, example: Example, task: GlueTask, input_format: InputFormat, tokenizer: Tokenizer, context: int
    ) -> list[InputRow]:
        """The rows of an example, of at most ``context`` tokens each: of one text its parts, each with the same label;
        of two texts one row, cut if they do not fit."""
        if not (pairs := self._pairs(example, task, input_format)):
            ids = tokenizer.encode(example.a)
            parts = equal_parts(len(ids), free_positions(input_format.single, context))
            single = [encode_parts(input_format.single, {"a": ids[part.start : part.stop]}) for part in parts]
            return [InputRow([written], example.label) for written in single]
        texts = [(tokenizer.encode(a), tokenizer.encode(b)) for a, b in pairs]
        sequences = [input_format.write(a, b, context, task.follows) for a, b in texts]
        kept = [free_positions(input_format.pair, len(written.ids)) for written in sequences]
        cut = any(most < len(a) + len(b) for most, (a, b) in zip(kept, texts, strict=True))
        return [InputRow(sequences, example.label, cut=cut)]

    def _pairs(self, example: Example, task: GlueTask, input_format: InputFormat) -> list[tuple[str, str]]:
        """The two texts of each sequence of an example; none for an example of one text."""
        if example.b is None:
            return []
        orders = [(example.a, example.b), (example.b, example.a)]
        return orders if task.symmetric and input_format.both_orders else orders[:1]

    def scale(self, train: Rows) -> Scale:
        """The unit in which labels are learned."""
        return Scale()

    def target(self, row: InputRow, length: int) -> Any:
        """The target of a row in a batch of sequences of this length."""
        return row.label

    def targets(self, rows: Sequence[InputRow], length: int) -> list[Any]:
        """The targets of the rows of a batch."""
        return [self.target(row, length) for row in rows]

    def outputs(self, labels: int) -> int:
        """C, by the number of labels; 0 for a head that passes on what it reads."""
        return labels

    def shaped(self, outputs: Tensor, batch: Any) -> Tensor:
        """From the head's raw outputs to those for ``loss`` and ``answers``."""
        return outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The summed loss."""
        return summed_nll(outputs, targets.long())

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        """The answer to each row, and its probability or NaN: see ``Predicted``."""
        return [(chances, math.nan) for chances in outputs.log_softmax(-1).tolist()]

    def combined(self, task: GlueTask, read: AnsweredRows, threshold: float) -> tuple[Any, float]:
        """The answer to an example from those to its rows, and its probability: the class with the largest mean
        log-probability, and its probability after a softmax over these means."""
        means = np.mean(read.answers, axis=0)
        best = int(means.argmax())
        return best, float(1 / np.exp(means - means[best]).sum())

    def of_examples(self, task: GlueTask, read: Iterable[AnsweredRows], threshold: float) -> list[tuple[Any, float]]:
        """The answer to each example of a set, and its probability or NaN."""
        return [self.combined(task, rows, threshold) for rows in read]

    def threshold(self, task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> float:
        """The threshold for ``combined``, chosen on these validation examples; 0 if there is none to choose."""
        return 0.0


class Numbers(TaskHead):
    """Squared errors, which are, up to a constant, nats of a normal distribution of variance 1/2, as in the released
    code of Devlin et al. 2019 and Yang et al. 2019."""

    def scale(self, train: Rows) -> Scale:
        """A standard deviation of 1 if all labels are equal."""
        labels = [example.label for example in train.examples]
        return Scale(float(np.mean(labels)), float(np.std(labels)) or 1.0)

    def outputs(self, labels: int) -> int:
        return 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0].to(targets.dtype) - targets).square().sum()

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        return [(number, math.nan) for number in outputs[:, 0].tolist()]

    def combined(self, task: GlueTask, read: AnsweredRows, threshold: float) -> tuple[Any, float]:
        """Their mean."""
        return float(np.mean(read.answers)), math.nan


class Choices(TaskHead):
    """A number for each sequence, softmax over those of a row (Radford et al. 2018, section 3.3; Devlin et al. 2019,
    section 4.4)."""

    reads = "sequence"

    def _pairs(self, example: Example, task: GlueTask, input_format: InputFormat) -> list[tuple[str, str]]:
        return [(example.a, choice if example.b is None else f"{example.b} {choice}") for choice in example.choices]

    def outputs(self, labels: int) -> int:
        return 1

    def shaped(self, outputs: Tensor, batch: Any) -> Tensor:
        return outputs[..., 0]


class Tags(TaskHead):
    """Each word's first piece is classified (Devlin et al. 2019, section 5.3)."""

    reads = "place"
    batch = TagBatch

    def rows(
        self, example: Example, task: GlueTask, input_format: InputFormat, tokenizer: Tokenizer, context: int
    ) -> list[InputRow]:
        """Windows of a sentence; each word is classified in the window where its first piece has the most context, the
        smaller of the numbers of tokens before and after it (Devlin et al. 2019, released code,
        ``_check_is_max_context``). A word that the tokenizer drops entirely is UNK."""
        ids: list[int] = []
        firsts = []
        for word in example.words:
            firsts.append(len(ids))
            ids += tokenizer.encode(f" {word}" if ids else word) or [UNK]
        parts = windows(len(ids), free_positions(input_format.single, context))
        homes = [max(parts, key=lambda part: min(at - part.start, part.stop - 1 - at)) for at in firsts]
        before = text_position(input_format.single, "a", {})
        rows = []
        for part in parts:
            words = [word for word, home in enumerate(homes) if home == part]
            if words:
                written = encode_parts(input_format.single, {"a": ids[part.start : part.stop]})
                places = [before + firsts[word] - part.start for word in words]
                rows.append(InputRow([written], [example.tags[word] for word in words], places, words[0]))
        return rows

    def target(self, row: InputRow, length: int) -> Any:
        assert isinstance(row.label, list)
        return padded(row.label, length, IGNORED)

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        """The tags of the words, each by itself; their probability is the product."""
        probabilities, best = outputs.softmax(-1).max(-1)
        words = batch.places != NOWHERE
        together = probabilities.where(words, 1.0).prod(1).tolist()
        counts = words.sum(1).tolist()
        return [(tags[:n], p) for tags, n, p in zip(best.tolist(), counts, together, strict=True)]

    def combined(self, task: GlueTask, read: AnsweredRows, threshold: float) -> tuple[Any, float]:
        """The tags of all words by name, and the product of the windows' probabilities."""
        return [task.labels[tag] for tags in read.answers for tag in tags], math.prod(read.confidences)


class AnswerSpan(NamedTuple):
    """The most likely answer in a window, and the score of no answer."""

    score: float
    """The sum of the logits of its first and its last token; -inf for a window without text."""
    first: int
    last: int
    """The tokens of the answer, counted from the first one of the window."""
    probability: float
    """The probability of both, in this window."""
    null_score: float
    null_probability: float
    """The same for no answer."""


class Spans(TaskHead):
    """Two softmaxes over the text and CLS, which stands for no answer (Devlin et al. 2019, sections 4.2 and 4.3); the
    loss is their mean."""

    reads = "place"
    batch = SpanBatch

    def rows(
        self, example: Example, task: GlueTask, input_format: InputFormat, tokenizer: Tokenizer, context: int
    ) -> list[InputRow]:
        """A question with windows of its text. If the first right answer is not in a window, CLS is the target."""
        assert example.b is not None
        spelling = tokenizer.spell(example.b)
        most = free_positions(input_format.question, context)
        whole = tokenizer.encode(example.a)
        question = whole[: min(LONGEST_QUESTION, most // 2)]
        span = None
        if example.answers:
            # The first and the last token of the first right answer, which may have none.
            answer = example.answers[0]
            places = characters(example.b, spelling)
            first = next((i for i, (_, stop) in enumerate(places) if stop > answer.start), len(places))
            ends = (i for i, (start, _) in enumerate(places) if start >= answer.start + len(answer.text))
            last = next(ends, len(places)) - 1
            span = (first, last) if first <= last else None
        rows = []
        for part in windows(len(spelling.ids), most - len(question)):
            texts = {"a": question, "b": spelling.ids[part.start : part.stop]}
            written = encode_parts(input_format.question, texts)
            start = text_position(input_format.question, "b", texts)
            inside = span is not None and span[0] in part and span[1] in part
            target = [1 + at - part.start for at in span] if inside and span else [0, 0]
            positions = [written.ids.index(CLS), *range(start, start + len(part))]
            rows.append(InputRow([written], target, positions, part.start, cut=len(question) < len(whole)))
        return rows

    def outputs(self, labels: int) -> int:
        return 2

    def shaped(self, outputs: Tensor, batch: Any) -> Tensor:
        """``[B, P, 2]`` to ``[B, 2, P]``; positions that are not a place of the row cannot be answered."""
        return outputs.masked_fill((batch.places == NOWHERE)[..., None], -math.inf).transpose(1, 2)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets) / 2

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        """The span of at most ``LONGEST_ANSWER`` tokens whose logits have the largest sum (Devlin et al. 2019, 4.2)."""
        starts, ends = outputs.unbind(1)
        # For each place, those at which an answer that begins there may end, ``[B, P - 1, 30]``.
        reached = F.pad(ends[:, 1:], (0, LONGEST_ANSWER - 1), value=-math.inf).unfold(1, LONGEST_ANSWER, 1)
        scores, chosen = (starts[:, 1:, None] + reached).flatten(1).max(1)
        nulls = starts[:, 0] + ends[:, 0]
        norms = outputs.logsumexp(-1).sum(1)
        begins = chosen // LONGEST_ANSWER
        columns = (scores, begins, begins + chosen % LONGEST_ANSWER, (scores - norms).exp())
        rows = zip(*(column.tolist() for column in (*columns, nulls, (nulls - norms).exp())), strict=True)
        return [(AnswerSpan(*row), math.nan) for row in rows]

    def combined(self, task: GlueTask, read: AnsweredRows, threshold: float) -> tuple[Any, float]:
        """The best answer of all windows, cut out of the text; "" if its margin is above the threshold, with the
        probability that no window contains an answer."""
        text, probability, margin = self._best(read)
        if math.isinf(margin) or (task.unanswerable and margin > threshold):
            return "", math.prod(span.null_probability for span in read.answers)
        return text, probability

    def threshold(self, task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer) -> float:
        """By how much the logits of no answer must exceed those of the best answer to predict no answer: the value with
        the best score on these examples (Devlin et al. 2019, section 4.3). 0 if every question has an answer."""
        if not task.unanswerable:
            return 0.0
        parts = [exact_match if name == "exact_match" else answer_f1 for name, _ in parts_of(task.score)]
        gains = []  # of each example, if it is left without an answer
        margins = []
        for read in answered_rows(rows, predicted, tokenizer):
            text, _, margin = self._best(read)
            right = KINDS[task.kind].gold(task, read.example)
            gains.append(sum(part("", right) - part(text, right) for part in parts))
            margins.append(margin)
        margin_of, gain_of = (np.array(values) for values in (margins, gains))
        finite = np.unique(margin_of[np.isfinite(margin_of)])
        if not len(finite):
            return 0.0
        # Halfway between two margins, so that no example is on the edge.
        candidates = np.array([0.0, finite[0] - 1, *(finite[1:] + finite[:-1]) / 2, finite[-1] + 1])
        totals = np.array([gain_of[margin_of > threshold].sum() for threshold in candidates])
        return float(min(candidates[totals >= totals.max() - 1e-9], key=abs))

    def _best(self, read: AnsweredRows) -> tuple[str, float, float]:
        """The best answer of all windows, its probability, and its margin: by how much the sum of the logits of no
        answer, the lowest of all windows, exceeds that of the answer; infinite if no window contains text."""
        best, row = max(zip(read.answers, read.rows, strict=True), key=lambda pair: pair[0].score)
        margin = min(span.null_score for span in read.answers) - best.score
        if math.isinf(margin):
            return "", best.probability, margin
        text = read.example.b or ""
        places = characters(text, read.tokenizer.spell(text))
        answer = text[places[row.first + best.first][0] : places[row.first + best.last][1]].strip()
        return answer, best.probability, margin


class Search(TaskHead):
    """Query and passage as vectors, the mean states of their tokens with length 1: each query of a batch chooses among
    the batch's passages by their cosines (Henderson et al. 2017, section 4.4; the MultipleNegativesRankingLoss of
    sentence-transformers)."""

    reads = "mean"

    def rows(
        self, example: Example, task: GlueTask, input_format: InputFormat, tokenizer: Tokenizer, context: int
    ) -> list[InputRow]:
        """One row with a sequence for each text, cut at its end. If pretraining never reads the special tokens of
        examples, a text follows an EOS, as in pretraining. The label identifies equal texts in a batch."""
        parts = ((EOS, 0), ("a", 0)) if input_format.unread else input_format.single
        most = free_positions(parts, context)
        texts = [tokenizer.encode(text) or [UNK] for text in example.texts]
        sequences = [encode_parts(parts, {"a": ids[:most]}) for ids in texts]
        names = [int(sha256_text(text)[:15], 16) for text in example.texts]
        return [InputRow(sequences, names, cut=any(len(ids) > most for ids in texts))]

    def outputs(self, labels: int) -> int:
        return 0

    def shaped(self, outputs: Tensor, batch: Any) -> Tensor:
        """``[B, K, D]``."""
        return F.normalize(outputs, dim=-1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Other passages of the same query, and the same passage of other queries, do not count as wrong choices."""
        cosines = outputs[:, 0] @ outputs[:, -1].T
        places = torch.arange(len(cosines), device=cosines.device)
        alike = (targets[:, None] == targets).any(-1) & (places[:, None] != places)
        return summed_nll((cosines / TEMPERATURE).masked_fill(alike, -math.inf), places)

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        """Vectors ``[K, D]`` in float32."""
        return [(vectors, math.nan) for vectors in outputs.float().numpy()]

    def of_examples(self, task: GlueTask, read: Iterable[AnsweredRows], threshold: float) -> list[tuple[Any, float]]:
        """The rank of each example's passage among those of the set."""
        triples = [(row.example.a, str(row.example.b), row.answers[0]) for row in read]
        held = {passage: vectors[-1] for _, passage, vectors in reversed(triples)}
        queries, passages, vectors = zip(*triples, strict=True)
        query_vectors = np.stack([row[0] for row in vectors])
        ordered = np.stack([held[passage] for passage in dict.fromkeys(passages)])
        return [(rank, math.nan) for rank in ranks(queries, passages, query_vectors, ordered)]


@dataclass(frozen=True)
class TextBatch(ExampleBatch):
    """Sources, and the texts to be written: ``targets`` [B, N] token ids, ``IGNORED`` after their end."""

    num_targets = Batch.num_targets  # tokens


class Texts(TaskHead):
    """A text is written token by token (``text_writer``); of several right ones the first is learned."""

    reads = "text"
    batch = TextBatch

    def rows(
        self, example: Example, task: GlueTask, input_format: InputFormat, tokenizer: Tokenizer, context: int
    ) -> list[InputRow]:
        """The source, cut at its end, and the text with its EOS.

        Raises:
            UserError: such models write no texts, or the text is longer than they can write.
        """
        if input_format.writer is None:
            raise UserError(f"finetune.tasks: {task.name} asks for a text, which this model cannot write")
        writer = resolve_name(input_format.writer)
        text = [*tokenizer.encode(KINDS[task.kind].gold(task, example)[0]), EOS]
        most_source, most_text = writer.room(context, len(text))
        if len(text) > most_text:
            raise UserError(
                f"examples.{task.name}: the text of example {example.id} has {len(text)} tokens; expected at most "
                f"{most_text} for model.context {context}: leave it out, or train a model with a longer context"
            )
        ids = tokenizer.encode(example.a)
        most = free_positions(writer.source, most_source)
        return [InputRow([encode_parts(writer.source, {"a": ids[:most]})], text, cut=most < len(ids))]

    def targets(self, rows: Sequence[InputRow], length: int) -> list[Any]:
        """Padded to a multiple of ``TEXT_MULTIPLE``, so that compiled models see few lengths."""
        texts = [row.label for row in rows if isinstance(row.label, list)]
        longest = max(map(len, texts))
        return [padded(text, longest + -longest % TEXT_MULTIPLE, IGNORED) for text in texts]

    def outputs(self, labels: int) -> int:
        return 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0].sum()

    def answers(self, outputs: Tensor, batch: Any) -> list[tuple[Any, float]]:
        """The tokens of each text, and their probability."""
        rows = outputs[:, 1:].tolist()
        return [
            ([int(token) for token in tokens if token != NO_TOKEN], math.exp(-nats) if nats >= 0 else math.nan)
            for nats, *tokens in (row or [math.nan] for row in rows)
        ]

    def combined(self, task: GlueTask, read: AnsweredRows, threshold: float) -> tuple[Any, float]:
        """The text."""
        return read.tokenizer.decode(read.answers[0]).strip(), read.confidences[0]


def example_answers(
    task: GlueTask, rows: Rows, predicted: Predicted, tokenizer: Tokenizer, threshold: float = 0.0
) -> Predicted:
    """Combine answers to rows into answers to examples: class ids, numbers, the tags of all words by name,
    texts, or ranks."""
    head: TaskHead = resolve_name(KINDS[task.kind].head)
    of_examples = head.of_examples(task, answered_rows(rows, predicted, tokenizer), threshold)
    return Predicted([answer for answer, _ in of_examples], [sure for _, sure in of_examples], predicted.loss)


def padded(values: Sequence[int], length: int, filler: int) -> list[int]:
    """The values, filled up to a length."""
    return [*values, *[filler] * (length - len(values))]


CLASSES, NUMBERS, CHOICES, TAGS = TaskHead(), Numbers(), Choices(), Tags()
SPANS, SEARCH, TEXTS = Spans(), Search(), Texts()
