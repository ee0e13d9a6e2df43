"""What a run reads that carries on from a model: the documents that are new to it, and some that are not.

A model that reads only new text forgets the old; a share of old text prevents most of that (Ibrahim et al. 2024,
"Simple and Scalable Strategies to Continually Pre-train Large Language Models", section 5).
"""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import numpy as np

from plm_core.shared.paths import READ
from plm_core.text.token_store import SomeDocuments, TokenStore


def document_keys(store: TokenStore) -> np.ndarray:
    """The ``keys_of`` the documents of a store."""
    return keys_of(zip(store.ids(range(store.index.documents)), store.bytes.tolist(), strict=True))


def keys_of(named: Iterable[tuple[str, int]]) -> np.ndarray:
    """A hash of each document's id and length in bytes, ``[documents]`` uint64: another text has another key."""
    keys = (blake2b(f"{size} {identity}".encode(), digest_size=8).digest() for identity, size in named)
    return np.frombuffer(b"".join(keys), dtype="<u8")


def new_and_replayed(
    store: TokenStore, ancestor: Path, replay: float, least: int, seed: int
) -> tuple[SomeDocuments, int]:
    """The documents of a store that ``ancestor``, a checkpoint, has not read, and as many of the others, drawn at
    random, as make up the share ``replay`` of all their tokens, or ``least`` tokens; and the number of the new ones."""
    new = ~np.isin(document_keys(store), np.load(ancestor / READ))
    sizes = np.diff(store.offsets)
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(np.flatnonzero(~new))
    tokens = int(sizes[new].sum())
    wanted = max(tokens * replay / (1 - replay), least - tokens)
    replayed = order[: np.searchsorted(sizes[order].cumsum(), wanted) + 1]
    return SomeDocuments(store, np.union1d(np.flatnonzero(new), replayed)), int(new.sum())
