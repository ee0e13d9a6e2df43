"""Initial weights from the text: embeddings from which tokens occur together, an output bias from token frequencies.

Used by pretraining: embeddings if configured, the bias for a published model whose head starts at random.

A training run of minutes reads its text at most once, and much of what it learns is which tokens go together: here
tokens with the same neighbours begin with similar embeddings. What is factorised is the pointwise mutual information of
a token and a neighbour (Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization"), with what
Levy, Goldberg and Dagan 2015 ("Improving Distributional Similarity with Lessons Learned from Word Embeddings", sections
3.1 to 3.3) found to help: nearer neighbours count more, rare ones less, and a dimension is scaled by the root of its
singular value. V tokens in the vocabulary, D dimensions.
"""

import warnings

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor, nn

from plm_core.text.token_store import TokenStore

WINDOW = 2
"""How many tokens to either side are neighbours; one at distance d counts 1/d."""
SMOOTHING = 0.75
"""The exponent of a neighbour's frequency (section 3.2 there), without which rare ones seem informative."""
DEVIATION = 3
"""The standard deviation of the embeddings relative to that of other initial weights, about as in trained models."""
PART = 1 << 20
PARTS = 16
"""The tokens of a part, and the most parts that are counted; those of a longer text are spread over it."""
ITERATIONS = 2
"""The iterations of the factorisation: more make it more exact, but models no better."""


def begin_with_neighbours(embedding: Tensor, store: TokenStore, deviation: float) -> None:
    """Initialise an embedding ``[V, D]`` from the neighbours of each token; a token without any keeps its row.

    ``deviation`` is the standard deviation of other initial weights. Draws from torch's generator.
    """
    information = _information(_neighbours(store))
    seen = torch.from_numpy(np.diff(information.indptr) > 0)
    if seen.any():
        size = embedding.shape[1]
        # Rotated at random, so that no coordinate is larger than others: heads and the optimizer treat all alike.
        rows = _factors(information, size) @ nn.init.orthogonal_(torch.empty(size, size))
        scale = DEVIATION * deviation / rows[seen].square().mean().sqrt()
        with torch.no_grad():
            embedding[: len(seen)][seen] = rows[seen] * scale  # what is not in the text's vocabulary comes last


def begin_with_frequencies(bias: Tensor, store: TokenStore) -> None:
    """Initialise the bias of an output layer ``[V]``: at first it predicts each token as often as it occurs."""
    counts = np.ones(len(bias))
    for start in range(0, len(store), PART):
        counts += np.bincount(store.tokens(start, min(start + PART, len(store))), minlength=len(bias))
    nats = torch.from_numpy(np.log(counts))
    with torch.no_grad():
        bias.copy_(nats - nats.mean())


def _neighbours(store: TokenStore) -> csr_array:
    """How often any two tokens occur near each other, ``[V, V]``, symmetric."""
    size = store.index.vocab_size
    counts = csr_array((size, size), dtype=np.float32)
    for start in range(0, len(store), max(PART, len(store) // PARTS)):
        tokens = store.tokens(start, min(start + PART, len(store)))
        for distance in range(1, WINDOW + 1):
            pairs = (tokens[:-distance], tokens[distance:])
            weights = np.full(len(pairs[0]), 1 / distance, dtype=np.float32)
            counts += coo_array((weights, pairs), shape=counts.shape).tocsr()
    return counts + counts.T


def _information(counts: csr_array) -> csr_array:
    """The positive pointwise mutual information of any two tokens, ``[V, V]``."""
    frequencies = counts.sum(axis=1)
    smoothed = frequencies**SMOOTHING
    pairs = counts.tocoo()
    row, column = pairs.coords
    nats = np.log(pairs.data * smoothed.sum() / (frequencies[row] * smoothed[column]))
    positive = nats > 0
    return csr_array((nats[positive], (row[positive], column[positive])), shape=counts.shape)


def _factors(matrix: csr_array, dimensions: int) -> Tensor:
    """The rows ``[V, D]`` whose products best approximate the matrix (Halko et al. 2011), with zeros if V < D."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        starts, columns = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
        values = torch.from_numpy(matrix.data).float()
        sparse = torch.sparse_csr_tensor(starts, columns, values, matrix.shape, check_invariants=True)
        u, s, _ = torch.svd_lowrank(sparse, min(dimensions, matrix.shape[0]), niter=ITERATIONS)
    return nn.functional.pad(u * s.sqrt(), (0, dimensions - len(s)))
