"""How likely a text is under a model; the quantity depends on its objective. Used wherever models are scored.

A causal model predicts a token from those before it, a masked model from all others, a permutation model from those
before it in some order: only numbers of the same name may be compared. The likelihood of a lossy tokenizer's tokens
(WordPiece) is not that of the text, because what it drops costs nothing; its name says so.
"""

from collections.abc import Callable, Iterable, Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.evidence import LOSSY
from plm_core.objectives.objective import Quantity
from plm_core.text.tokenizers import Tokenizer

if TYPE_CHECKING:  # they import torch
    from plm_core.evaluation.likelihood.document_scores import Likelihood, Text
    from plm_core.training.device import Device

Scorer = Callable[[Any, Iterable["Text"], LikelihoodConfig, "Device"], Iterator["Likelihood"]]
"""A function from a model and texts to one score per text, in order."""


def scorer_of(quantity: Quantity) -> Scorer:
    """Return the function that measures a quantity."""
    return resolve_name(quantity.scorer)


def named(quantity: str, tokenizer: Tokenizer) -> str:
    """The name of a quantity when it is measured for a model with this tokenizer."""
    return quantity if tokenizer.lossless else LOSSY + quantity


def in_evidence(quantity: str, tokenizer: Tokenizer) -> str:
    """Its name in evidence, with the digest of a lossy tokenizer; one that extends another drops the same words and
    characters, and goes by the digest of that one."""
    return named(quantity, tokenizer) + ("" if tokenizer.lossless else f" of {tokenizer.starts[0][:12]}")
