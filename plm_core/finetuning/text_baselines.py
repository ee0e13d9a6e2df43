"""Baselines for tasks whose answers are texts: copying, the first sentences, and a table of aligned phrases.

Functions as in ``linear_baselines.py``; no answer has a probability. Sources: Brown et al. 1993, "The Mathematics of
Statistical Machine Translation", section 4.1 (Model 1); Koehn, Och and Marcu 2003, "Statistical Phrase-Based
Translation", sections 3.1 and 4.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from plm_core.benchmarks.example_readers import Example, sample
from plm_core.benchmarks.task import GlueTask
from plm_core.corpus.normalize import UNSPACED
from plm_core.evaluation import evaluate_modules

Examples = Sequence[Example]
Way = Callable[[str], str]
Words = tuple[str, ...]
Point = tuple[int, int]

SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?![a-z])|(?<=[。！？])")
TOKEN = re.compile(rf"\s*(?:[{UNSPACED}]|[^\W_{UNSPACED}]+|\S)")
"""A word or a sign with the space before it, so that joined tokens are the text."""
LONGEST_TEXT, MOST_CELLS = 100, 30_000_000
"""The most tokens of a text from which phrases are learned, and the most pairs of tokens of all texts: these take about
2 GB, and 20 seconds."""
ROUNDS, LONGEST_PHRASE = 5, 3
"""The rounds of Model 1; the most words of a phrase of the source, of which the target's may have twice as many."""
CANDIDATES, BEAM = 6, 8
"""The number of translations of a phrase, and of hypotheses of equal length, that are tried."""
BIGRAM, LANGUAGE_MODEL, WORD = 0.7, 0.5, 1.0
"""The weight of bigrams against single words, of the language model, and the bonus per word, which the model takes."""


def translations(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> tuple[list[str], list[float]]:
    """The source as it is or the translation by phrases, whichever is better on the validation examples."""
    return _best(task, (str, PhraseTable(sample(train, None)).translate), valid, test)


def summaries(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> tuple[list[str], list[float]]:
    """The first sentence, the first three or all, whichever is best on the validation examples; nothing is learned."""
    return _best(task, (lead(1), lead(3), str), valid, test)


def lead(sentences: int) -> Way:
    """The first sentences of a text."""

    def first(text: str) -> str:
        ends = [end.start() for end in SENTENCE_ENDS.finditer(text)]
        return text[: ends[sentences - 1]] if len(ends) >= sentences else text

    return first


def _best(task: GlueTask, ways: Sequence[Way], valid: Examples, test: Examples) -> tuple[list[str], list[float]]:
    references = [[reference.text for reference in e.answers] for e in valid]

    def score(way: Way) -> float:
        return evaluate_modules.scores([task.score], [way(e.a) for e in valid], references, ())[task.score]

    best = max(ways, key=score)
    return [best(e.a) for e in test], [math.nan] * len(test)


class PhraseTable:
    """Translations of phrases, learned from examples, and a bigram language model of their references."""

    def __init__(self, examples: Examples) -> None:
        texts = [(tuple(map(str.lower, _tokens(e.a))), _tokens(r.text)) for e in examples for r in e.answers]
        pairs = [pair for pair in texts if max(map(len, pair)) <= LONGEST_TEXT]
        cells = itertools.accumulate(len(source) * len(target) for source, target in pairs)
        pairs = [pair for pair, total in zip(pairs, cells, strict=True) if total <= MOST_CELLS]
        counts = defaultdict[Words, Counter[Words]](Counter)
        for (source, target), points in zip(pairs, _alignments(pairs) if pairs else (), strict=True):
            for of_source, of_target in _phrases(points, len(target)):
                counts[source[of_source]][target[of_target]] += 1
        self._phrases: dict[Words, list[tuple[Words, float]]] = {}
        for phrase, choices in counts.items():
            common = choices.most_common(CANDIDATES)
            self._phrases[phrase] = [(words, math.log(count / choices.total())) for words, count in common]
        self._words = Counter(token for _, target in texts for token in (*target, ""))
        self._total = self._words.total() + len(self._words) + 1
        self._bigrams = Counter(two for _, target in texts for two in zip(("", *target), (*target, ""), strict=True))

    def translate(self, text: str) -> str:
        """The best translation without reordering (Koehn et al. 2003, section 2, with a beam); unknown words stay."""
        written = _tokens(text)
        source = tuple(map(str.lower, written))
        # Hypotheses by the number of words translated: the best for each last word, with its score.
        beams: list[dict[str, tuple[float, Words]]] = [{"": (0.0, ())}, *({} for _ in source)]
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

    def _fluency(self, before: Words, words: Words) -> float:
        """What the language model and the bonus add for these words after the one before."""
        score = 0.0
        for last, word in zip((*(before or ("",)), *words), words, strict=False):
            single = (self._words[word] + 1) / self._total
            double = self._bigrams[last, word] / self._words[last] if last in self._words else 0.0
            score += WORD + LANGUAGE_MODEL * math.log(BIGRAM * double + (1 - BIGRAM) * single)
        return score


def _tokens(text: str) -> Words:
    return tuple(TOKEN.findall(" " + " ".join(text.split())))


def _alignments(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Iterator[set[Point]]:
    """The aligned places (source, target) of each pair: where Model 1 agrees in both directions, and neighbours of such
    places where one of them says so ("grow-diag", Koehn et al. 2003, section 3.1)."""
    ids: tuple[dict[str, int], dict[str, int]] = ({}, {})
    coded = [
        [np.array([own.setdefault(token, len(own)) for token in side]) for own, side in zip(ids, pair, strict=True)]
        for pair in pairs
    ]
    shapes = [(len(source), len(target)) for source, target in coded]
    # Every source word meets every target word of its pair, in one flat array; ``number`` says which two words meet.
    cells = np.concatenate([(source[:, None] * len(ids[1]) + target).ravel() for source, target in coded])
    meeting, number = np.unique(cells, return_inverse=True)
    ends = np.cumsum([rows * columns for rows, columns in shapes])[:-1]
    links = []
    for axis, word in enumerate(np.divmod(meeting, len(ids[1]))):
        # A word of the other side chooses among those of this side, which are its column or row of the pair's table.
        offsets = np.cumsum([0, *(shape[1 - axis] for shape in shapes)])
        choosers = (np.indices(shape)[1 - axis].ravel() + at for shape, at in zip(shapes, offsets, strict=False))
        chooser = np.concatenate(list(choosers))
        chance = np.ones(len(meeting))
        for _ in range(ROUNDS):
            expected = chance[number]
            expected /= np.bincount(chooser, expected)[chooser]
            total = np.bincount(number, expected)
            chance = total / np.bincount(word, total)[word]
        tables = zip(shapes, np.split(chance[number], ends), strict=True)
        links.append([table.reshape(shape).argmax(axis).tolist() for shape, table in tables])
    for chosen, choosing in zip(*links, strict=True):
        forward = {(i, j) for j, i in enumerate(chosen)}
        backward = set(enumerate(choosing))
        yield _grown(forward & backward, forward | backward)


def _grown(points: set[Point], either: set[Point]) -> set[Point]:
    rows, columns = ({point[side] for point in points} for side in (0, 1))
    waiting = sorted(points)
    while waiting:
        i, j = waiting.pop()
        for near in itertools.product((i - 1, i, i + 1), (j - 1, j, j + 1)):
            if near in either and near not in points and (near[0] not in rows or near[1] not in columns):
                points.add(near)
                rows.add(near[0])
                columns.add(near[1])
                waiting.append(near)
    return points


def _phrases(points: set[Point], length: int) -> Iterator[tuple[slice, slice]]:
    """The phrases of source and target that are aligned with nothing outside of them, also with the unaligned words of
    the target, of ``length`` tokens, that follow."""
    targets, sources = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for i, j in points:
        targets[i].append(j)
        sources[j].append(i)
    for first in sorted(targets):
        for last in range(first, first + LONGEST_PHRASE):
            columns = [j for i in range(first, last + 1) for j in targets.get(i, ())]
            begin = min(columns)
            end = max(columns) + 1
            inside = all(first <= i <= last for j in range(begin, end) for i in sources.get(j, ()))
            if last not in targets or not inside:
                continue
            for behind in range(end, min(length, begin + 2 * LONGEST_PHRASE) + 1):
                if behind > end and behind - 1 in sources:
                    break
                yield slice(first, last + 1), slice(begin, behind)
