"""Linear baselines for tasks that ask for more than the class of a text: tags, choices and answers in a text.

Used by ``linear``. The features are the obvious ones. N rows, W features.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack
from scipy.special import softmax
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.corpus.normalize import UNSPACED

Said = tuple[list[Any], list[float]]
"""Answers, and the probability of each."""

STRENGTH = 10.0
"""The inverse regularisation strength, 1 / lambda."""
BESIDE = 2
"""The number of words to the left and right of a word used for its tag."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]")
"""A word, a character of a script without spaces between words, or a sign: `not`, `n't` and `!` are informative."""
LONGEST = 6
"""The most words of an answer."""
WRONG = 20
"""The number of random spans per text that serve as negative examples."""
NEAR = 5
"""The number of words to the left and right of a span that are compared with its question."""


def tags(task: GlueTask, train: Sequence[Example], test: Sequence[Example]) -> Said:
    """Tag each word by itself, from the word, its neighbours, their shapes, its beginning and its end."""

    def features(examples: Sequence[Example]) -> Iterator[dict[str, float]]:
        return (_of_word(e.words, i) for e in examples for i in range(len(e.words)))

    labels = list(chain.from_iterable(e.tags for e in train))
    if len(set(labels)) < 2:
        return [[task.labels[labels[0]]] * len(e.words) for e in test], [math.nan] * len(test)
    known = DictVectorizer()
    model = _fitted(known.fit_transform(features(train)), labels)
    chances = model.predict_proba(known.transform(features(test)))
    ends = np.cumsum([len(e.words) for e in test])[:-1]
    answers = [
        [task.labels[int(model.classes_[place])] for place in part.argmax(1)] for part in np.split(chances, ends)
    ]
    return answers, [float(part.max(1).prod()) for part in np.split(chances, ends)]


def choices(train: Sequence[Example], test: Sequence[Example]) -> Said:
    """Choose by the words of each choice, those it shares with what precedes it, and its number of words.

    The weights make the right one of two more likely (Bradley and Terry 1952).
    """
    weigh = TfidfVectorizer(token_pattern=WORD.pattern, sublinear_tf=True)
    weigh.fit(chain.from_iterable(e.texts for e in train))

    def read(example: Example) -> csr_matrix:
        own = weigh.transform(example.choices)
        asked = weigh.transform([f"{example.a} {example.b or ''}"] * len(example.choices))
        both = own.multiply(asked)
        sizes = csr_matrix([[math.log1p(len(choice))] for choice in example.choices])
        return hstack([own, both, both.sum(axis=1), sizes], format="csr")

    pairs = []
    for example in train:
        rows = read(example)
        right = int(example.label)
        pairs += [rows[right] - rows[other] for other in range(rows.shape[0]) if other != right]
    differences = vstack(pairs, format="csr")
    both_ways = vstack([differences, -differences], format="csr")
    model = _fitted(both_ways, [1] * len(pairs) + [0] * len(pairs), intercept=False)
    chances = [softmax(model.decision_function(read(example))) for example in test]
    return [int(chance.argmax()) for chance in chances], [float(chance.max()) for chance in chances]


def spans(task: GlueTask, train: Sequence[Example], test: Sequence[Example]) -> Said:
    """The most likely span of at most ``LONGEST`` words: by its shape with the question's first words, and the number
    of words of the question in it and near it (Rajpurkar et al. 2016, section 5). No answer is one more candidate.
    """
    known = DictVectorizer()
    draw = random.Random(0)
    rows: list[dict[str, float]] = []
    labels = []
    for example in train:
        found = _Text(example)
        true = {(answer.start, answer.start + len(answer.text)) for answer in example.answers}
        places = list(found.spans(task.unanswerable))
        right = [place for place in places if (found.reach(place) in true if true else place is None)]
        wrong = [place for place in places if place not in right]
        wrong = draw.sample(wrong, min(WRONG, len(wrong)))
        rows += [found.features(place) for place in (*right, *wrong)]
        labels += [1] * len(right) + [0] * len(wrong)
    if len(set(labels)) < 2:
        return [""] * len(test), [math.nan] * len(test)
    model = _fitted(known.fit_transform(rows), labels)
    answers, sure = [], []
    for example in test:
        found = _Text(example)
        places = list(found.spans(task.unanswerable))
        if not places:
            answers.append("")
            sure.append(math.nan)
            continue
        chance = softmax(model.decision_function(known.transform(map(found.features, places))))
        best = int(chance.argmax())
        answers.append(found.said(places[best]))
        sure.append(float(chance[best]))
    return answers, sure


class _Text:
    """A question and the text that may contain its answer, as words."""

    def __init__(self, example: Example) -> None:
        self.text = example.b or ""
        self.places = [match.span() for match in WORD.finditer(self.text)]
        self.words = [self.text[start:stop] for start, stop in self.places]
        self.lower = [word.lower() for word in self.words]
        asked = [word.lower() for word in WORD.findall(example.a)]
        self.asked = set(asked)
        self.opening = "_".join(asked[:2])

    def spans(self, none: bool) -> Iterator[tuple[int, int] | None]:
        """The first word of each candidate and the one after its last; None means no answer."""
        for first in range(len(self.words)):
            for behind in range(first + 1, min(first + LONGEST, len(self.words)) + 1):
                yield first, behind
        if none:
            yield None

    def reach(self, span: tuple[int, int] | None) -> tuple[int, int] | None:
        """Where a span begins and ends in the text."""
        return span and (self.places[span[0]][0], self.places[span[1] - 1][1])

    def said(self, span: tuple[int, int] | None) -> str:
        """The text of a span."""
        reached = self.reach(span)
        return self.text[slice(*reached)] if reached else ""

    def features(self, span: tuple[int, int] | None) -> dict[str, float]:
        """The features of a span, each with its weight."""
        if span is None:
            missing = len(self.asked.difference(self.lower)) / max(1, len(self.asked))
            return {"none": 1.0, "none:missing": missing, f"none:{self.opening}": 1.0}
        first, behind = span
        shapes = [_shape(word) for word in self.words[first:behind]]
        left = self.lower[max(0, first - NEAR) : first]
        right = self.lower[behind : behind + NEAR]
        return {
            f"{self.opening} begins {shapes[0]}": 1.0,
            f"{self.opening} ends {shapes[-1]}": 1.0,
            f"words {behind - first}": 1.0,
            f"begins {shapes[0]}": 1.0,
            f"ends {shapes[-1]}": 1.0,
            f"before {left[-1] if left else ''}": 1.0,
            f"behind {right[0] if right else ''}": 1.0,
            "asked inside": len(self.asked.intersection(self.lower[first:behind])) / (behind - first),
            "asked to the left": len(self.asked.intersection(left)) / NEAR,
            "asked to the right": len(self.asked.intersection(right)) / NEAR,
        }


def _of_word(words: Sequence[str], place: int) -> dict[str, float]:
    """The features of a word of a sentence."""
    found = [f"^{words[place][:3]}", f"{words[place][-3:]}$"]
    for step in range(-BESIDE, BESIDE + 1):
        word = words[place + step] if 0 <= place + step < len(words) else ""
        found += [f"{step}={word.lower()}", f"{step}~{_shape(word)}"]
    return dict.fromkeys(found, 1.0)


def _shape(word: str) -> str:
    """``Xx`` for Paris, ``X`` for EU, ``d`` for 1999: a run of capitals, lowercase letters or digits is one sign."""
    signs = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    return re.sub(r"(.)\1+", r"\1", "".join(signs))


def _fitted(features: csr_matrix, labels: Sequence[int], intercept: bool = True) -> LogisticRegression:
    return LogisticRegression(C=STRENGTH, max_iter=500, fit_intercept=intercept).fit(features, labels)
