"""How much of a text occurs verbatim in the training text. Used by the stages slices and evaluate.

Words are those of ``corpus.shingles``, without case and punctuation.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from plm_core.corpus.document import Texts, pieces_of
from plm_core.corpus.part_pool import Pool
from plm_core.corpus.shingles import batches, words

NGRAM = 8
"""This many words in a row recur by chance only if they are a common phrase (Brown et al. 2020, "Language Models are
Few-Shot Learners", appendix C, has 8 to 13). Decontamination, which removes what it finds, looks for longer runs."""
Array = np.ndarray
Grams = dict[int, Array]
"""Distinct n-grams by their number of words, as sorted hashes; or which of them occur in a text."""
Search = Callable[[Grams], Grams]
"""Which of these n-grams occur in the training text."""
FOUND = "found.npy"


def overlaps(examples: Sequence[Sequence[str]], search: Search, n: int = NGRAM) -> tuple[Array, Array]:
    """The words of each example, ``[N]`` int64, and the share of its n-grams that occurs in a training text, ``[N]``.

    An example is one or several texts; no n-gram reaches from one into the next. A text of fewer than n words is one
    n-gram as a whole. An n-gram that occurs twice in an example counts twice; an example without a word has a share of
    0. Words are compared by hashes of 64 bits.
    """
    parts = words([text for example in examples for text in example])
    counts = np.diff(parts.ends, prepend=0)
    owner = np.repeat(np.arange(len(examples)), [len(e) for e in examples])
    shingles = parts.shingles(n)
    of_text = np.repeat(np.arange(len(counts)), np.diff(shingles.ends, prepend=0))
    length = np.minimum(counts, n)[of_text]
    standing = np.zeros(len(of_text), dtype=bool)
    wanted = {int(k): np.unique(shingles.hashes[length == k]) for k in np.unique(length)}
    for k, seen in search(wanted).items():
        of_length = length == k
        standing[of_length] = seen[np.searchsorted(wanted[k], shingles.hashes[of_length])]
    size = len(examples)
    total = np.bincount(owner[of_text], minlength=size)
    shared = np.bincount(owner[of_text], weights=standing, minlength=size)
    sizes = np.bincount(owner, weights=counts, minlength=size).astype(np.int64)
    return sizes, shared / np.maximum(total, 1)


def ngrams_in_text(wanted: Grams, training: Iterable[str]) -> Grams:
    """Which of the n-grams occur in a training text. Only the n-grams take memory."""
    seen = {k: np.zeros(len(grams), dtype=bool) for k, grams in wanted.items()}
    for group in batches(training, str):
        read = words(group)
        for k, grams in wanted.items():
            hashes = read.shingles(k).hashes
            places = np.minimum(np.searchsorted(grams, hashes), len(grams) - 1)
            seen[k][places[grams[places] == hashes]] = True
    return seen


def search_part(work: tuple[Grams, tuple[Path, slice]], folder: Path) -> None:
    """Write which of the n-grams occur in some row groups of a file of the training text."""
    wanted, piece = work
    overlapping = ngrams_in_text(wanted, Texts([piece]))
    np.save(folder / FOUND, np.concatenate([np.zeros(0, dtype=bool), *overlapping.values()]))


def search_in(table: Path, pool: Pool) -> Search:
    """A search of all texts of a table, part by part."""

    def search(wanted: Grams) -> Grams:
        # The folder is named by the n-grams, so that a resumed run does not reuse answers to another question.
        job = f"search-{hashlib.sha256(pickle.dumps(wanted)).hexdigest()[:16]}"
        return ngrams_in_any_part(wanted, pool.map(job, search_part, [(wanted, piece) for piece in pieces_of(table)]))

    return search


def ngrams_in_any_part(wanted: Grams, results: Iterable[Path]) -> Grams:
    """Which of the n-grams occur in any of the parts that were searched."""
    ends = np.cumsum([0, *map(len, wanted.values())])
    seen = np.zeros(ends[-1], dtype=bool)
    for result in results:
        seen |= np.load(result / FOUND)
    return dict(zip(wanted, np.split(seen, ends[1:-1]), strict=False))
