"""What an example adds to a score of entities, of answers inside texts, of summaries, of minimal pairs, or of a search.

Shapes: N queries, C distinct passages, W dimensions.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from plm_core.evaluation.text_overlap import rouge

AT_ONCE = 256
"""The number of queries whose similarities to all passages are in memory at once."""
Entity = tuple[int, int, str]
"""First token, one past the last, type."""
GOOD, TIE, BAD = "good", "tie", "bad"
RIGHT = {GOOD: 1.0, TIE: 0.5, BAD: 0.0}
"""The credit for each choice within a minimal pair."""
DEPTH = 10
"""The number of passages that a search shows: lower ranks do not count."""


def ranks(queries: Sequence[str], passages: Sequence[str], query_vectors: Any, passage_vectors: Any) -> list[int]:
    """The rank, from 1, of each query's passage among all distinct passages, by the products of vectors.

    ``queries`` and ``passages`` are the texts [N] of the pairs, ``query_vectors`` [N, W] the vectors of the queries,
    ``passage_vectors`` [C, W] those of the distinct passages in the order of their first occurrence; arrays or sparse
    matrices. If a query occurs in several pairs, their other passages do not compete with its own (Bordes et al. 2013,
    section 4.2, "filtered"). A passage that is as similar as the relevant one, or whose similarity is NaN, is ranked
    before it.
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys(passages))}
    relevant: dict[str, list[int]] = {}
    for query, passage in zip(queries, passages, strict=True):
        relevant.setdefault(query, []).append(numbers[passage])
    ranked = []
    for start in range(0, len(queries), AT_ONCE):
        products = query_vectors[start : start + AT_ONCE] @ passage_vectors.T
        rows = products if isinstance(products, np.ndarray) else products.toarray()
        for row, query, passage in zip(rows, queries[start:], passages[start:], strict=False):
            own = row[numbers[passage]]
            row[relevant[query]] = -np.inf
            ranked.append(1 + int((~(row < own)).sum()))
    return ranked


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence in IOB2: ``B-X`` begins one, and ``I-X`` after it continues it.

    An ``I-X`` after anything else also begins one, as in conlleval, the script of CoNLL-2003, and in seqeval's default
    mode: answers are read leniently, and scores are comparable with the literature.

    Raises:
        ValueError: a tag is not ``O``, ``B-<type>`` or ``I-<type>``.
    """
    spans: list[Entity] = []
    open_since = None
    kind = ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, of = tag.partition("-")
        if tag != "O" and not (prefix in ("B", "I") and of):
            raise ValueError(f"tag {position + 1}: found {tag!r}; expected O, B-<type> or I-<type>")
        if open_since is not None and (prefix, of) != ("I", kind):
            spans.append((open_since, position, kind))
            open_since = None
        if tag != "O" and open_since is None:
            open_since, kind = position, of
    return spans


def normalized_answer(text: str) -> str:
    """An answer as SQuAD compares it: lowercase, without punctuation, articles and extra whitespace.

    ``normalize_answer`` of the official scripts (Rajpurkar et al. 2016, section 6.1).
    """
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the right answers, otherwise 0; if there is none (SQuAD 2.0), "" is right."""
    return max(float(normalized_answer(prediction) == answer) for answer in _golden(answers))


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """The F1 of the prediction's words against the nearest right answer; if there is none, "" is right.

    If either side is empty, 1 if both are, otherwise 0: the rule of SQuAD 2.0 (Rajpurkar et al. 2018), which differs
    from the script of 1.1 for empty answers only.
    """
    predicted = normalized_answer(prediction).split()
    best = 0.0
    for gold in (answer.split() for answer in _golden(answers)):
        same = (Counter(predicted) & Counter(gold)).total()
        best = max(best, 2 * same / (len(predicted) + len(gold)) if predicted and gold else float(predicted == gold))
    return best


def counts(score: str, predicted: Any, gold: Any) -> tuple[float, float]:
    """The numerator and denominator that an example adds to a score: of the tags of a sentence, the text of an answer
    or a summary and the list of right ones, a choice in ``RIGHT``, or the rank of the relevant passage, from 1.

    ``entity_f1`` is the micro average over all sentences: 2 right / (answered + true), an entity being right if its
    place and type are; 0 if none is, even if there is none at all, as in seqeval (Nakayama 2018) and in conlleval
    (Tjong Kim Sang and De Meulder 2003). Of a search, ``ndcg_at_10`` is 1 / log2(1 + rank) (Järvelin and Kekäläinen
    2002), ``mrr_at_10`` 1 / rank and ``recall_at_10`` 1, and each is 0 beyond rank 10.

    Raises:
        ValueError: a tag is not IOB2, the numbers of tags differ, the choice is unknown, or the rank is below 1.
    """
    if score == "entity_f1":
        if len(predicted) != len(gold):
            raise ValueError(f"{len(predicted)} tags for {len(gold)} words")
        left, right = set(entities(predicted)), set(entities(gold))
        return 2 * len(left & right), len(left) + len(right)
    if score == "pair_accuracy":
        if predicted not in RIGHT:
            raise ValueError(f"the prediction {predicted!r} is not one of {', '.join(RIGHT)}")
        return RIGHT[predicted], 1.0
    if score.endswith(f"_at_{DEPTH}"):
        if (rank := int(predicted)) < 1:
            raise ValueError(f"the rank {rank}; expected at least 1")
        gain = {"ndcg": 1 / math.log2(1 + rank), "mrr": 1 / rank, "recall": 1.0}[score.partition("_")[0]]
        return gain if rank <= DEPTH else 0.0, 1.0
    if score.startswith("rouge"):
        return rouge(score, predicted, gold), 1.0
    return (exact_match if score == "exact_match" else answer_f1)(predicted, gold), 1.0


def _golden(answers: Sequence[str]) -> list[str]:
    return [normal for answer in answers if (normal := normalized_answer(answer))] or [""]
