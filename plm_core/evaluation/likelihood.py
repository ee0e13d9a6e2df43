"""The likelihoods by objective. ``SCORERS`` names them; used by the evaluate stage and by serving.

Models of different objectives are not given the same quantity, for they do not predict a token from the same text: a
causal model from the tokens before it, a masked model from all the others, a permutation model from those before it in
some order. Each quantity has its own name, and only numbers of the same name may be compared.

Where the tokenizer is lossy (WordPiece), the likelihood is that of the tokens, not of the text: what is dropped costs
nothing, -log p(tokens) <= -log p(text). Its name says so, and it compares only models with the very same tokenizer.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from plm_core.evaluation import causal, permutation, pseudo
from plm_core.evaluation.evidence import LOSSY
from plm_core.evaluation.scores import DocumentScore, Text
from plm_core.sections.evaluation import LikelihoodConfig
from plm_core.text.tokenizer import Tokenizer
from plm_core.training.device import Device

ScoreFunction = Callable[[Any, Iterable[Text], LikelihoodConfig, Device], Iterator[DocumentScore]]
"""A model and texts to one score a text, in order."""


@dataclass(frozen=True)
class Scorer:
    """How models of one objective are measured on held-out text."""

    quantity: str
    """The name of what ``score`` measures, in bits a byte: what such models are compared by."""
    score: ScoreFunction
    beside: dict[str, ScoreFunction] = field(default_factory=dict)
    """Further quantities by name, for people; one that the configuration does not ask for yields no score."""


SCORERS: dict[str, Scorer] = {
    "causal": Scorer(causal.QUANTITY, causal.score),
    "masked": Scorer(pseudo.QUANTITY, pseudo.score),
    "permutation": Scorer(
        permutation.QUANTITY, permutation.score, {permutation.MEAN_QUANTITY: permutation.score_orders}
    ),
}


def named(quantity: str, tokenizer: Tokenizer) -> str:
    """What a quantity is called when it is measured of a model with this tokenizer."""
    return quantity if tokenizer.lossless else LOSSY + quantity
