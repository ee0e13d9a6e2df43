"""Samples of a model, and measures of them: blanks that it fills, how varied its texts are, what they copy.

Used by the evaluate stage. All measures count words, so that models with different tokenizers can be compared:
``copied_shares`` those of ``train_overlap``, the others lowercase ones, split at whitespace or between characters of
scripts without it.
"""

import math
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch

from plm_core.configs.stage_configs import around_blank
from plm_core.corpus.normalize import words_of
from plm_core.corpus.shingles import words
from plm_core.evaluation.train_overlap import NGRAM, Search
from plm_core.objectives import OBJECTIVES
from plm_core.text.tokenizers import CLS, EOS, MASK, PAD, PIECES, SEP, Tokenizer
from plm_core.training.device import Device

Filler = Callable[[Any, Tokenizer, str, Device], list[tuple[str, float]]]
"""From a model, its tokenizer and a text with one blank to pieces for it and their probabilities, likeliest first."""
MOST = 5


def filler_of(objective: str) -> Filler | None:
    """How models that were trained by the objective with this name fill a blank; None: they do not."""
    place = OBJECTIVES[objective].filler
    return None if place is None else resolve_name(place)


@torch.no_grad()
def fill(model: Any, tokenizer: Tokenizer, text: str, device: Device) -> list[tuple[str, float]]:
    """The ``MOST`` most likely pieces for the blank ``___`` in a text, with their probabilities, in descending order.

    The blank is one MASK (Taylor 1953, "Cloze Procedure"; Devlin et al. 2019, section 3.1), so it is filled by one
    piece, which begins with a space if the blank does. Special tokens do not fill blanks.

    Raises:
        ValueError: the text has not exactly one blank, or is longer than the model's context.
    """
    before, after = (tokenizer.encode(part) for part in around_blank(text))
    start = [CLS, *before]
    ids = torch.tensor([[*start, MASK, *after, SEP]], device=device.device)
    _require_room(text, ids, model)
    model.eval()
    return _likeliest(model.predict(ids, torch.tensor([[len(start)]], device=device.device))[0, 0], tokenizer)


@torch.no_grad()
def fill_span(model: Any, tokenizer: Tokenizer, text: str, device: Device) -> list[tuple[str, float]]:
    """As ``fill``, for a model that writes what a sentinel stands for: the first piece of it."""
    before, after = (tokenizer.encode(part) for part in around_blank(text))
    ids = torch.tensor([[*before, model.config.first_sentinel, *after, EOS]], device=device.device)
    _require_room(text, ids, model)
    model.eval()
    written = torch.tensor([[PAD, model.config.first_sentinel]], device=device.device)
    return _likeliest(model.logits(model.decode(written, model.encode(ids)))[0, -1, : tokenizer.vocab_size], tokenizer)


def _require_room(text: str, ids: torch.Tensor, model: Any) -> None:
    if ids.shape[1] > model.config.context:
        raise ValueError(
            f"cloze: {text!r} is {ids.shape[1]} tokens long; expected at most the model's context, "
            f"{model.config.context}"
        )


def _likeliest(logits: torch.Tensor, tokenizer: Tokenizer) -> list[tuple[str, float]]:
    logits[: len(PIECES)] = float("-inf")
    probabilities, tokens = logits.softmax(dim=-1).topk(MOST)
    return [(tokenizer.piece(token), p) for token, p in zip(tokens.tolist(), probabilities.tolist(), strict=True)]


def distinct(texts: Sequence[str], n: int) -> float:
    """distinct-n: the different n-grams of all texts, as a share of their n-grams (Li et al. 2016, "A
    Diversity-Promoting Objective Function for Neural Conversation Models"); NaN if there is none."""
    grams = [gram for text in texts for gram in _grams(text, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def repetition_share(texts: Sequence[str], n: int) -> float:
    """seq-rep-n: the share of a text's n-grams that occur earlier in it, the mean over texts that have any (Welleck et
    al. 2020, "Neural Text Generation with Unlikelihood Training"); NaN if none has."""
    every = [grams for text in texts if (grams := _grams(text, n))]
    return sum(1 - len(set(grams)) / len(grams) for grams in every) / len(every) if every else math.nan


def copied_shares(texts: Sequence[str], search: Search, n: int = NGRAM) -> tuple[float, int]:
    """What occurs verbatim in the training text: the share of the texts' n-grams, and the longest run of words.

    Each n-gram of a run occurs somewhere in that text, so it is the longest run that may have been copied as a whole
    (compare Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better", with 50 tokens). NaN and 0 if
    there is no n-gram.
    """
    read = words(texts)
    shingles = read.shingles(n)
    counts = np.diff(read.ends, prepend=0)
    split = zip(np.split(shingles.hashes, shingles.ends[:-1]), counts, strict=False)
    every = [grams for grams, count in split if count >= n]
    if not every:
        return math.nan, 0
    wanted = np.unique(np.concatenate(every))
    seen = wanted[search({n: wanted})[n]]
    standing = [np.isin(grams, seen) for grams in every]
    longest = 0
    for hits in standing:
        run = 0
        for hit in hits.tolist():
            run = run + 1 if hit else 0
            longest = max(longest, run)
    return float(np.concatenate(standing).mean()), longest + n - 1 if longest else 0


def _grams(text: str, n: int) -> list[tuple[str, ...]]:
    read = words_of(text.lower())
    return list(zip(*(read[i:] for i in range(n)), strict=False))
