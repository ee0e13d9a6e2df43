"""Encodes a corpus into a token store, part by part in a pool. Used by the stage pack."""

from collections.abc import Iterable
from pathlib import Path

from plm_core.corpus.document import read_documents
from plm_core.text.token_store import StoreIndex, TokenStore, write_store, write_tokens
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import Tokenizer

STORE = "store"
"""The store of a part, in the folder of its result."""


def encode_part(work: tuple[Path, slice, Path], folder: Path) -> None:
    """Encode the documents in these row groups of a file, with the tokenizer in a folder, into a store of their own."""
    file, groups, tokenizer = work
    named = ((document.id, document.text) for document in read_documents(file, groups))
    write_store(folder / STORE, named, open_tokenizer(tokenizer))


def join_parts(folder: Path, parts: Iterable[Path], tokenizer: Tokenizer) -> StoreIndex:
    """Join the results of ``encode_part`` into one store, with the bytes that ``write_store`` would write."""
    stores = (TokenStore(part / STORE) for part in parts)
    documents = (
        (identity, int(size), tokens[:-1])
        for store in stores
        for identity, size, tokens in zip(
            store.ids(range(store.index.documents)), store.bytes, store.documents(), strict=True
        )
    )
    return write_tokens(folder, documents, tokenizer.vocab_size, tokenizer.sha256)
