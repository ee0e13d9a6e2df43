"""Baselines for tasks that need no language model: linear models on words.

There is one function per kind of task, named by ``Kind.linear``. From the task and its training, validation and test
examples it computes the answers to the test examples, as in ``example_answers``, and the probability of each (NaN for a
number). Features are the obvious ones, models scikit-learn's. Shapes: N examples, W features.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pkgutil import resolve_name
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack
from scipy.special import softmax
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.corpus.normalize import UNSPACED
from plm_core.evaluation.example_counts import counts, ranks

Examples = Sequence[Example]
Answered = tuple[list[Any], list[float]]
"""Answers, and the probability of each."""

STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Inverse regularisation strengths, 1 / lambda: for classes and numbers the one with the least loss on the validation
examples is used."""
STRENGTH = 10.0
"""The strength for tags, choices and spans."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]")
"""A word, a character of a script without spaces between words, or a sign: `not`, `n't` and `!` are informative."""
BESIDE = 2
"""The number of words to the left and right of a word used for its tag."""
LONGEST = 6
"""The most words of an answer."""
WRONG = 20
"""The number of random spans per text that serve as negative examples."""
SATURATION, LENGTH = 1.2, 0.75
"""k1 and b of BM25, as in Lucene."""
NEAR = 5
"""The number of words to the left and right of a span that are compared with its question."""


def predict(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """The answers of the linear model for the task's kind."""
    with threadpool_limits(1):  # more threads would sum vectors in another order, and mostly wait for each other
        answered: Answered = resolve_name(KINDS[task.kind].linear)(task, train, valid, test)
    return answered


def classes(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """Logistic regression on the words of one text or two."""
    if len(labels := {e.label for e in train}) == 1:  # a sample may lack classes that the task has
        return [int(*labels)] * len(test), [1.0] * len(test)

    def nats(model: LogisticRegression, features: csr_matrix, truth: np.ndarray) -> float:
        """The mean over the examples whose class it has seen."""
        seen = np.isin(truth, model.classes_)
        if not seen.any():
            return math.inf
        return float(log_loss(truth[seen], model.predict_proba(features[seen]), labels=model.classes_))

    features, fitted = _of_texts(train, valid, test, lambda C: LogisticRegression(C=C, max_iter=2000), nats)
    return fitted.predict(features).tolist(), fitted.predict_proba(features).max(axis=1).tolist()


def ridge_regression(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """Ridge regression on the words of one text or two."""

    def squares(model: Ridge, features: csr_matrix, truth: np.ndarray) -> float:
        return float(np.square(model.predict(features) - truth).mean())

    features, fitted = _of_texts(train, valid, test, lambda C: Ridge(alpha=1 / C), squares)
    return fitted.predict(features).tolist(), [math.nan] * len(test)


def _of_texts(
    train: Examples,
    valid: Examples,
    test: Examples,
    model: Callable[[float], Any],
    loss: Callable[[Any, csr_matrix, np.ndarray], float],
) -> tuple[csr_matrix, Any]:
    """The features of the test examples, and the fitted model of the strength with the least loss."""
    # TF-IDF of words and of pairs of adjacent words.
    weigh = TfidfVectorizer(token_pattern=WORD.pattern, ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    try:
        weigh.fit(chain.from_iterable((e.a, e.b or "") for e in train))
    except ValueError:  # no feature occurs in two examples
        weigh.set_params(min_df=1).fit(chain.from_iterable((e.a, e.b or "") for e in train))

    def read(examples: Examples) -> csr_matrix:
        """``[N, W]``; for pairs ``[N, 3 W + 1]``: either text, what they share, and the cosine of the two."""
        first = weigh.transform([e.a for e in examples])
        if all(e.b is None for e in examples):
            return first
        second = weigh.transform([e.b or "" for e in examples])
        both = first.multiply(second)
        return hstack([first, second, both, both.sum(axis=1)], format="csr")

    learned, held_out = (read(examples) for examples in (train, valid))
    labels, truth = (np.array([e.label for e in examples]) for examples in (train, valid))
    fitted = [model(strength).fit(learned, labels) for strength in STRENGTHS]
    return read(test), min(fitted, key=lambda model: loss(model, held_out, truth))


def tags(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """Tag each word by itself, from the word, its neighbours, their shapes, its beginning and its end."""

    def features(examples: Examples) -> Iterator[dict[str, float]]:
        for words, place in ((e.words, place) for e in examples for place in range(len(e.words))):
            names = [f"^{words[place][:3]}", f"{words[place][-3:]}$"]
            for step in range(-BESIDE, BESIDE + 1):
                word = words[place + step] if 0 <= place + step < len(words) else ""
                names += [f"{step}={word.lower()}", f"{step}~{_shape(word)}"]
            yield dict.fromkeys(names, 1.0)

    labels = list(chain.from_iterable(e.tags for e in train))
    if len(set(labels)) < 2:
        return [[task.labels[labels[0]]] * len(e.words) for e in test], [math.nan] * len(test)
    vectorizer = DictVectorizer()
    model = _fitted(vectorizer.fit_transform(features(train)), labels)
    chances = model.predict_proba(vectorizer.transform(features(test)))
    ends = np.cumsum([len(e.words) for e in test])[:-1]
    answers = [
        [task.labels[int(model.classes_[place])] for place in part.argmax(1)] for part in np.split(chances, ends)
    ]
    return answers, [float(part.max(1).prod()) for part in np.split(chances, ends)]


def choices(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """Choose by the words of each choice, those it shares with what precedes it, and its number of words.

    The weights make the right one of two more likely (Bradley and Terry 1952).
    """
    weigh = TfidfVectorizer(token_pattern=WORD.pattern, sublinear_tf=True)
    weigh.fit(chain.from_iterable(e.texts for e in train))

    def read(example: Example) -> csr_matrix:
        own = weigh.transform(example.choices)
        questions = weigh.transform([f"{example.a} {example.b or ''}"] * len(example.choices))
        both = own.multiply(questions)
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


def spans(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """The most likely span of at most ``LONGEST`` words: by its shape with the question's first words, and the number
    of words of the question in it and near it (Rajpurkar et al. 2016, section 5). No answer is one more candidate."""
    vectorizer = DictVectorizer()
    draw = random.Random(0)
    rows: list[dict[str, float]] = []
    labels = []
    for example in train:
        text = _Text(example)
        gold = {(answer.start, answer.start + len(answer.text)) for answer in example.answers}
        places = list(text.spans(task.unanswerable))
        right = [place for place in places if (text.reach(place) in gold if gold else place is None)]
        wrong = [place for place in places if place not in right]
        wrong = draw.sample(wrong, min(WRONG, len(wrong)))
        rows += [text.features(place) for place in (*right, *wrong)]
        labels += [1] * len(right) + [0] * len(wrong)
    if len(set(labels)) < 2:
        return [""] * len(test), [math.nan] * len(test)
    model = _fitted(vectorizer.fit_transform(rows), labels)
    answers, sure = [], []
    for example in test:
        text = _Text(example)
        places = list(text.spans(task.unanswerable))
        if not places:
            answers.append("")
            sure.append(math.nan)
            continue
        chance = softmax(model.decision_function(vectorizer.transform(map(text.features, places))))
        best = int(chance.argmax())
        answers.append(text.text_of(places[best]))
        sure.append(float(chance[best]))
    return answers, sure


def search(task: GlueTask, train: Examples, valid: Examples, test: Examples) -> Answered:
    """BM25 or the cosine of TF-IDF, whichever ranks the validation examples better; nothing is learned."""

    def gain(way: Callable[[Examples], list[int]]) -> float:
        return sum(counts("ndcg_at_10", rank, 1)[0] for rank in way(valid))

    return max((bm25, tfidf), key=gain)(test), [math.nan] * len(test)


def bm25(examples: Examples) -> list[int]:
    """The ranks of the examples' passages by BM25 (Robertson and Zaragoza 2009), with the inverse document
    frequency of Lucene, which is never negative."""
    words = CountVectorizer(token_pattern=WORD.pattern)
    passages = [str(e.b) for e in examples]
    held = words.fit_transform(dict.fromkeys(passages)).tocoo()
    sizes = np.asarray(held.sum(axis=1)).ravel()
    containing = np.bincount(held.col, minlength=held.shape[1])
    rarity = np.log1p((len(sizes) - containing + 0.5) / (containing + 0.5))
    slow = SATURATION * (1 - LENGTH + LENGTH * sizes / sizes.mean())[held.row]
    weights = rarity[held.col] * held.data * (SATURATION + 1) / (held.data + slow)
    weighed = csr_matrix((weights, (held.row, held.col)), held.shape)
    return ranks([e.a for e in examples], passages, words.transform(e.a for e in examples), weighed)


def tfidf(examples: Examples) -> list[int]:
    """The ranks of the examples' passages by the cosine of TF-IDF."""
    words = TfidfVectorizer(token_pattern=WORD.pattern, sublinear_tf=True)
    passages = [str(e.b) for e in examples]
    held = words.fit_transform(dict.fromkeys(passages))
    return ranks([e.a for e in examples], passages, words.transform(e.a for e in examples), held)


class _Text:
    """A question and the text that may contain its answer, as words."""

    def __init__(self, example: Example) -> None:
        self.text = example.b or ""
        self.places = [match.span() for match in WORD.finditer(self.text)]
        self.words = [self.text[start:stop] for start, stop in self.places]
        self.lower = [word.lower() for word in self.words]
        question = [word.lower() for word in WORD.findall(example.a)]
        self.question_words = set(question)
        self.opening = "_".join(question[:2])

    def spans(self, none: bool) -> Iterator[tuple[int, int] | None]:
        """The first word of each candidate and the one after its last; None means no answer."""
        for first in range(len(self.words)):
            for stop in range(first + 1, min(first + LONGEST, len(self.words)) + 1):
                yield first, stop
        if none:
            yield None

    def reach(self, span: tuple[int, int] | None) -> tuple[int, int] | None:
        """Where a span begins and ends in the text."""
        return span and (self.places[span[0]][0], self.places[span[1] - 1][1])

    def text_of(self, span: tuple[int, int] | None) -> str:
        reached = self.reach(span)
        return self.text[slice(*reached)] if reached else ""

    def features(self, span: tuple[int, int] | None) -> dict[str, float]:
        if span is None:
            missing = len(self.question_words.difference(self.lower)) / max(1, len(self.question_words))
            return {"none": 1.0, "none:missing": missing, f"none:{self.opening}": 1.0}
        first, stop = span
        shapes = [_shape(word) for word in self.words[first:stop]]
        left = self.lower[max(0, first - NEAR) : first]
        right = self.lower[stop : stop + NEAR]
        return {
            f"{self.opening} begins {shapes[0]}": 1.0,
            f"{self.opening} ends {shapes[-1]}": 1.0,
            f"words {stop - first}": 1.0,
            f"begins {shapes[0]}": 1.0,
            f"ends {shapes[-1]}": 1.0,
            f"before {left[-1] if left else ''}": 1.0,
            f"behind {right[0] if right else ''}": 1.0,
            "asked inside": len(self.question_words.intersection(self.lower[first:stop])) / (stop - first),
            "asked to the left": len(self.question_words.intersection(left)) / NEAR,
            "asked to the right": len(self.question_words.intersection(right)) / NEAR,
        }


def _shape(word: str) -> str:
    """``Xx`` for Paris, ``X`` for EU, ``d`` for 1999: a run of capitals, lowercase letters or digits is one sign."""
    signs = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    return re.sub(r"(.)\1+", r"\1", "".join(signs))


def _fitted(features: csr_matrix, labels: Sequence[int], intercept: bool = True) -> LogisticRegression:
    return LogisticRegression(C=STRENGTH, max_iter=500, fit_intercept=intercept).fit(features, labels)
