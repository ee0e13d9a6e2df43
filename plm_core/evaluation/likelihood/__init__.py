"""How likely a text is to a model: the measured quantity depends on its objective. Used wherever models are scored.

Models of different objectives have different quantities, because they do not predict a token from the same context: a
causal model from the tokens before it, a masked model from all the others, a permutation model from those before it in
some order. Each quantity has its own name, and only numbers of the same name may be compared.

If the tokenizer is lossy (WordPiece), the likelihood is that of the tokens, not of the text: what it drops costs
nothing, -log p(tokens) <= -log p(text). Its name says so, and it compares only models with the very same tokenizer.
"""

from collections.abc import Callable, Iterable, Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from plm_core.evaluation.evidence import LOSSY
from plm_core.objectives.base import Quantity
from plm_core.sections.evaluation import LikelihoodConfig
from plm_core.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # they import torch
    from plm_core.evaluation.likelihood.base import Likelihood, Text
    from plm_core.training.device import Device

Scorer = Callable[[Any, Iterable["Text"], LikelihoodConfig, "Device"], Iterator["Likelihood"]]
"""A function from a model and texts to one score per text, in order."""


def scorer_of(quantity: Quantity) -> Scorer:
    """Return the function that measures a quantity."""
    return resolve_name(quantity.scorer)


def named(quantity: str, tokenizer: Tokenizer) -> str:
    """The name of a quantity when it is measured for a model with this tokenizer."""
    return quantity if tokenizer.lossless else LOSSY + quantity
