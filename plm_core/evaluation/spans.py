"""Scores of texts inside texts: entity F1 of labelled tokens, exact match and F1 of answers; and of minimal pairs.

For fine-tuning on named entities and on question answering, and for evidence. Pure functions of texts; no tokenizer is
involved.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Sequence

Entity = tuple[int, int, str]
"""First token, one past the last, type."""
GOOD, TIE, BAD = "good", "tie", "bad"
RIGHT = {GOOD: 1.0, TIE: 0.5, BAD: 0.0}
"""How right each choice within a minimal pair is."""


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence in IOB2: ``B-X`` begins one, and ``I-X`` after it continues it.

    An ``I-X`` after anything else also begins one, as in conlleval, the script of CoNLL-2003, and in seqeval's default
    mode: answers are read leniently, and scores are comparable with the literature.

    Raises:
        ValueError: a tag is not ``O``, ``B-<type>`` or ``I-<type>``.
    """
    found: list[Entity] = []
    open_since = None
    kind = ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, of = tag.partition("-")
        if tag != "O" and not (prefix in ("B", "I") and of):
            raise ValueError(f"tag {position + 1}: found {tag!r}; expected O, B-<type> or I-<type>")
        if open_since is not None and (prefix, of) != ("I", kind):
            found.append((open_since, position, kind))
            open_since = None
        if tag != "O" and open_since is None:
            open_since, kind = position, of
    return found


def entity_f1(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """F1 of the entities of all sentences together (the micro average): an entity is right if its place and type are.

    0 if no entity is right, even if there is none at all, as in seqeval (Nakayama 2018) and in conlleval (Tjong Kim
    Sang and De Meulder 2003).

    Raises:
        ValueError: there are no sentences, the numbers of sentences or of tags differ, or a tag is not IOB2.
    """
    if not references or len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} sentences for {len(references)}; expected equal numbers, at least one")
    above = below = 0
    for number, (said, true) in enumerate(zip(predictions, references, strict=True), start=1):
        if len(said) != len(true):
            raise ValueError(f"sentence {number}: {len(said)} tags for {len(true)}; expected equal numbers")
        counts = entity_counts(said, true)
        above, below = above + counts[0], below + counts[1]
    return above / below if below else 0.0


def entity_counts(said: Sequence[str], true: Sequence[str]) -> tuple[int, int]:
    """The numerator and denominator that a sentence adds to the F1: 2 right, answered + true.

    Raises:
        ValueError: a tag is not IOB2.
    """
    one, two = set(entities(said)), set(entities(true))
    return 2 * len(one & two), len(one) + len(two)


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
    said = normalized_answer(prediction).split()
    return max(_words_f1(said, answer.split()) for answer in _golden(answers))


def counts(score: str, prediction: str, label: str) -> tuple[float, float]:
    """The numerator and denominator that an example adds to a score of entities, answers or pairs.

    ``prediction`` and ``label`` are as in evidence: tags joined by spaces; a text, and a JSON list of right ones; one
    of ``RIGHT``.

    Raises:
        ValueError: they are not, or their lengths differ.
    """
    if score == "entity_f1":
        said, true = prediction.split(" "), label.split(" ")
        if len(said) != len(true):
            raise ValueError(f"{len(said)} tags for {len(true)} words")
        return entity_counts(said, true)
    if score == "pair_accuracy":
        if prediction not in RIGHT:
            raise ValueError(f"the prediction {prediction!r} is not one of {', '.join(RIGHT)}")
        return RIGHT[prediction], 1.0
    answers = json.loads(label)
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"the label {label[:99]}; expected a JSON list of texts")
    return (exact_match if score == "exact_match" else answer_f1)(prediction, answers), 1.0


def _words_f1(said: Sequence[str], true: Sequence[str]) -> float:
    if not said or not true:
        return float(said == true)
    same = (Counter(said) & Counter(true)).total()
    return 2 * same / (len(said) + len(true))


def _golden(answers: Sequence[str]) -> list[str]:
    return [normal for answer in answers if (normal := normalized_answer(answer))] or [""]
