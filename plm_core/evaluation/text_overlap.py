"""What a text has in common with reference texts: BLEU and chrF as sacrebleu counts them, ROUGE as rouge-score does.

Sources: Post 2018, "A Call for Clarity in Reporting BLEU Scores"; Lin 2004, "ROUGE: A Package for Automatic Evaluation
of Summaries". Both libraries are imported on first use: only tasks whose answers are texts need them.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

import numpy as np

Texts = Sequence[str]


def statistics(parts: Sequence[str], predictions: Texts, references: Sequence[Texts]) -> np.ndarray:
    """``[K, N]``: what each of N translations adds to these scores, in the order of ``answers.bleu`` and
    ``answers.chrf``; each text has one or more references."""
    streams = list(zip_longest(*references))
    counted = [_metric(name)._extract_corpus_statistics(predictions, streams) for name in parts]
    return np.concatenate([np.array(rows, dtype=np.float64) for rows in counted], axis=1).T


def rouge(name: str, prediction: str, references: Texts) -> float:
    """The F1 of n-grams (``rouge1``, ``rouge2``) or of the longest common subsequence (``rougeL``) with the reference
    for which it is highest, without stemming. Only the letters a to z and digits count."""
    return float(_scorer(name).score_multi(references, prediction)[name].fmeasure)


def signature(score: str, references: Sequence[Texts]) -> str:
    """How a score was computed, so that others can do the same: sacrebleu's signature of each part, or the version of
    rouge-score; "" for other scores."""
    parts = score.split("+")
    if parts[0].startswith("rouge"):
        return f"rouge-score {version('rouge-score')}, best of the references, no stemming"
    if parts[0] not in ("bleu", "chrf"):
        return ""
    for name in parts:  # a signature has the number of references of what was scored last
        _metric(name).corpus_score([""] * len(references), list(zip_longest(*references)))
    return ", ".join(f"{name}|{_metric(name).get_signature()}" for name in parts)


@cache
def _metric(name: str) -> Any:
    import sacrebleu

    # Without `force` sacrebleu warns of texts that are tokenized, which a team's own may be.
    return sacrebleu.BLEU(force=True) if name == "bleu" else sacrebleu.CHRF()


@cache
def _scorer(name: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([name])
