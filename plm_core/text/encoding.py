"""Encodes a corpus into a token store, part by part in a pool. Used by the stage pack."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from plm_core.corpus.document import read_documents
from plm_core.text.store import Index, TokenStore, write_store, write_tokens
from plm_core.text.tokenizer import Tokenizer
from plm_core.text.tokenizers import open_tokenizer

STORE = "store"
"""The store of a part, in the folder of its result."""
DOCUMENTS_AT_ONCE = 256


def encode_part(work: tuple[Path, slice, Path], folder: Path) -> None:
    """Encode the documents in these row groups of a file, with the tokenizer in a folder, into a store of their own."""
    file, groups, tokenizer = work
    named = ((document.id, document.text) for document in read_documents(file, groups))
    write_store(folder / STORE, named, open_tokenizer(tokenizer))


def join_parts(folder: Path, parts: Iterable[Path], tokenizer: Tokenizer) -> Index:
    """Join the results of ``encode_part`` into one store, with the bytes that ``write_store`` would write."""
    documents = (document for part in parts for document in _documents(TokenStore(part / STORE)))
    return write_tokens(folder, documents, tokenizer.vocab_size, tokenizer.sha256)


def _documents(store: TokenStore) -> Iterator[tuple[str, int, np.ndarray]]:
    """The documents in the form of ``write_tokens``, without EOS."""
    for begin in range(0, store.index.documents, DOCUMENTS_AT_ONCE):
        numbers = range(begin, min(begin + DOCUMENTS_AT_ONCE, store.index.documents))
        for number, identity in zip(numbers, store.ids(numbers), strict=True):
            tokens = store.tokens(int(store.offsets[number]), int(store.offsets[number + 1]) - 1)
            yield identity, int(store.bytes[number]), tokens
