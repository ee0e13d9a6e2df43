"""Baselines for tasks whose answers are texts: copying, the first sentences, and a table of aligned phrases.

Functions as in ``linear_baselines.py``; no answer has a probability. Sources: Brown et al. 1993, "The Mathematics of
Statistical Machine Translation", section 4.1 (Model 1); Koehn, Och and Marcu 2003, "Statistical Phrase-Based
Translation", sections 3.1 and 4.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from plm_core.benchmarks.example_readers import Example, sample
from plm_core.benchmarks.task import GlueTask
from plm_core.corpus.normalize import UNSPACED
from plm_core.evaluation import evaluate_modules

Examples = Sequence[Example]
Way = Callable[[str], str]

SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?![a-z])|(?<=[。！？])")
TOKEN = re.compile(rf"\s*(?:[{UNSPACED}]|[^\W_{UNSPACED}]+|\S)")
"""A word or a sign with the space before it, so that joined tokens are the text."""
MOST = 50_000
"""The most examples from which phrases are learned."""
LONGEST_PAIR = 100
"""The most tokens of a text from which phrases are learned: its memory grows with the product of both sides."""
ROUNDS = 5
"""The rounds of expectation and maximisation."""
LONGEST_PHRASE = 3
"""The most words of a phrase of the source."""
CANDIDATES, BEAM = 6, 8
"""The number of translations of a phrase, and of hypotheses of equal length, that are tried."""
BIGRAM, LANGUAGE_MODEL, WORD = 0.7, 0.5, 1.0
"""The weight of bigrams against single words, of the language model, and the bonus per word, which the model takes."""


def translations(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> tuple[list[str], list[float]]:
    """The source as it is or the translation by phrases, whichever is better on the validation examples."""
    return _best(task, (str, PhraseTable(sample(train, MOST)).translate), valid, test)


def summaries(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> tuple[list[str], list[float]]:
    """The first sentence, the first three or all, whichever is best on the validation examples; nothing is learned."""
    return _best(task, (lead(1), lead(3), str), valid, test)


def lead(sentences: int) -> Way:
    """The first sentences of a text."""
    return lambda text: " ".join(SENTENCE_ENDS.split(text)[:sentences])


def _best(task: GlueTask, ways: Sequence[Way], valid: Examples, test: Examples) -> tuple[list[str], list[float]]:
    references = [[reference.text for reference in e.answers] for e in valid]

    def score(way: Way) -> float:
        return evaluate_modules.scores([task.score], [way(e.a) for e in valid], references, ())[task.score]

    best = max(ways, key=score)
    return [best(e.a) for e in test], [math.nan] * len(test)


class PhraseTable:
    """Translations of phrases, learned from examples, and a bigram language model of their references."""

    def __init__(self, examples: Examples) -> None:
        texts = [(_tokens(e.a.lower()), _tokens(reference.text)) for e in examples for reference in e.answers]
        pairs = [pair for pair in texts if max(map(len, pair)) <= LONGEST_PAIR]
        counts: dict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
        for (source, target), points in zip(pairs, _alignments(pairs), strict=True):
            for first, behind, begin, end in _phrases(points, len(target)):
                counts[source[first:behind]][target[begin:end]] += 1
        self._phrases: dict[tuple[str, ...], list[tuple[tuple[str, ...], float]]] = {}
        for phrase, choices in counts.items():
            total = choices.total()
            common = choices.most_common(CANDIDATES)
            self._phrases[phrase] = [(words, math.log(count / total)) for words, count in common]
        self._words = Counter(token for _, target in texts for token in (*target, ""))
        self._total = self._words.total() + len(self._words) + 1
        self._bigrams = Counter(two for _, target in texts for two in zip(("", *target), (*target, ""), strict=True))

    def translate(self, text: str) -> str:
        """The best translation without reordering (Koehn et al. 2003, section 2, with a beam); unknown words stay."""
        written, source = _tokens(text), _tokens(text.lower())
        if len(written) != len(source):  # a letter may have another number of them in lower case
            written = source
        # Hypotheses by the number of words translated: the best for each last word, with its score.
        beams: list[dict[str, tuple[float, tuple[str, ...]]]] = [{"": (0.0, ())}, *({} for _ in source)]
        for start, beam in enumerate(beams):
            for score, output in sorted(beam.values(), reverse=True)[:BEAM]:
                for behind in range(start + 1, min(start + LONGEST_PHRASE, len(source)) + 1):
                    unknown = [((written[start],), 0.0)] if behind == start + 1 else []
                    for words, chance in self._phrases.get(source[start:behind], unknown):
                        longer = (*output, *words)
                        total = score + chance + self._fluency(output[-1:], words)
                        last = longer[-1] if longer else ""
                        if total > beams[behind].get(last, (-math.inf, ()))[0]:
                            beams[behind][last] = (total, longer)
        ends = beams[-1].values()
        return "".join(max(ends, key=lambda end: end[0] + self._fluency(end[1][-1:], ("",)))[1]).strip()

    def _fluency(self, before: tuple[str, ...], words: tuple[str, ...]) -> float:
        """What the language model and the bonus add for these words after the one before."""
        score = 0.0
        for last, word in zip((*(before or ("",)), *words), words, strict=False):
            single = (self._words[word] + 1) / self._total
            double = self._bigrams[last, word] / self._words[last] if last in self._words else 0.0
            score += WORD + LANGUAGE_MODEL * math.log(BIGRAM * double + (1 - BIGRAM) * single)
        return score


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(TOKEN.findall(" " + " ".join(text.split())))


def _alignments(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Iterator[list[tuple[int, int]]]:
    """The aligned places (source, target) of each pair: where Model 1 agrees in both directions, and neighbours of such
    places where one of them says so ("grow-diag", Koehn et al. 2003, section 3.1)."""
    ids: tuple[dict[str, int], dict[str, int]] = ({}, {})
    coded = [[np.array([own.setdefault(t, len(own)) for t in side]) for own, side in zip(ids, p, strict=True)] for p in pairs]
    # Every source word meets every target word of its pair, in one flat array.
    shapes = [(len(source), len(target)) for source, target in coded]
    keys = np.concatenate([(s[:, None] * len(ids[1]) + t).ravel() for s, t in coded]) if coded else np.zeros(0, int)
    met, number = np.unique(keys, return_inverse=True)
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    sides = []
    for given in (0, 1):
        # Words of the other side choose among those of this side: of a row or of a column of the pair's table.
        places = [np.indices(shape)[1 - given].ravel() for shape in shapes]
        offsets = np.cumsum([0, *(shape[1 - given] for shape in shapes)])
        chooser = np.concatenate([place + offset for place, offset in zip(places, offsets, strict=False)] or [keys])
        word = met // len(ids[1]) if given == 0 else met % len(ids[1])
        chance = np.ones(len(met))
        for _ in range(ROUNDS):
            expected = chance[number]
            expected /= np.bincount(chooser, expected)[chooser]
            chance = np.bincount(number, expected)
            chance /= np.bincount(word, chance)[word]
        sides.append(np.split(chance[number], ends[:-1]))
    for shape, first, second in zip(shapes, *sides, strict=True):
        tables = (first.reshape(shape), second.reshape(shape))
        forward = {(int(i), j) for j, i in enumerate(tables[0].argmax(0))}
        backward = {(i, int(j)) for i, j in enumerate(tables[1].argmax(1))}
        yield _grown(forward & backward, forward | backward)


def _grown(points: set[tuple[int, int]], either: set[tuple[int, int]]) -> list[tuple[int, int]]:
    rows, columns = ({point[side] for point in points} for side in (0, 1))
    waiting = sorted(points)
    while waiting:
        i, j = waiting.pop()
        for near in ((i + di, j + dj) for di in (-1, 0, 1) for dj in (-1, 0, 1)):
            if near in either and near not in points and (near[0] not in rows or near[1] not in columns):
                points.add(near)
                rows.add(near[0])
                columns.add(near[1])
                waiting.append(near)
    return sorted(points)


def _phrases(points: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[int, int, int, int]]:
    """First and one past the last word of phrases in source and target that are aligned with nothing outside, also with
    the unaligned words of the target around them."""
    by_row: Mapping[int, list[int]] = defaultdict(list)
    aligned: Mapping[int, list[int]] = defaultdict(list)
    for i, j in points:
        by_row[i].append(j)
        aligned[j].append(i)
    rows = max(by_row, default=-1) + 1
    for first in range(rows):
        columns: list[int] = []
        for behind in range(first + 1, min(first + LONGEST_PHRASE, rows) + 1):
            columns += by_row.get(behind - 1, [])
            if not columns or behind - 1 not in by_row or first not in by_row:
                continue
            begin, end = min(columns), max(columns) + 1
            if end - begin > 2 * LONGEST_PHRASE or any(
                not first <= i < behind for j in range(begin, end) for i in aligned.get(j, ())
            ):
                continue
            while True:
                yield first, behind, begin, end
                if end >= length or end in aligned or end - begin >= 2 * LONGEST_PHRASE:
                    break
                end += 1
