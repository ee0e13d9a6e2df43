"""The token store: a split's documents as one stream of token ids in memory-mapped shards. Written by pack.

A folder with ``shard-NNNNN.bin`` (little-endian uint16, or uint32 for a large vocabulary), ``offsets.npy`` (int64,
documents + 1: where each document begins in the stream), ``bytes.npy`` (int64: each document's UTF-8 length),
``ids.txt`` with ``ids.npy`` (the documents' ids concatenated in UTF-8, and int64, documents + 1: where each begins),
``index.json`` and ``SHA256SUMS``. Every document ends with EOS. Nothing is read into memory whole: tokens, offsets and
lengths are mapped, ids are read one at a time.
"""

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from plm_core.config import UserError, from_json, section
from plm_core.shared.files import CHECKSUMS, atomic_folder, sha256_file, verify_checksums
from plm_core.text.tokenizers import EOS, Tokenizer

FORMAT = 1
DOCUMENTS_AT_ONCE = 256


@section
class StoreIndex:
    """``index.json``."""

    dtype: str
    """``uint16`` or ``uint32``."""
    vocab_size: int
    """The number of token ids of the tokenizer that made the tokens."""
    tokenizer_sha256: str
    """The digest of that tokenizer's file."""
    documents: int
    """The number of documents, each ended by EOS."""
    tokens: int
    """The number of tokens, including EOS."""
    shards: list[int]
    """Tokens in each shard."""
    format: int
    """The version of this layout."""


def write_store(
    folder: Path, documents: Iterable[tuple[str, str]], tokenizer: Tokenizer, shard_tokens: int = 1 << 27
) -> StoreIndex:
    """Encode ``(id, text)`` pairs into a token store; the folder appears whole or not at all."""

    def encoded(documents: Iterator[tuple[str, str]]) -> Iterator[tuple[str, int, np.ndarray]]:
        while batch := list(islice(documents, DOCUMENTS_AT_ONCE)):
            tokens = tokenizer.encode_batch([text for _, text in batch])
            for (identity, text), ids in zip(batch, tokens, strict=True):
                yield identity, len(text.encode()), ids

    return write_tokens(folder, encoded(iter(documents)), tokenizer.vocab_size, tokenizer.sha256, shard_tokens)


def write_tokens(
    folder: Path,
    documents: Iterable[tuple[str, int, np.ndarray]],
    vocab_size: int,
    tokenizer_sha256: str,
    shard_tokens: int = 1 << 27,
) -> StoreIndex:
    """Write ``(id, bytes of UTF-8, tokens without EOS)`` as a token store; the folder appears whole or not at all."""
    dtype = "uint16" if vocab_size <= 1 << 16 else "uint32"
    shards: list[int] = []
    offsets = array("q", [0])
    lengths = array("q")
    ids_end = array("q", [0])
    with atomic_folder(folder) as temporary, (temporary / "ids.txt").open("wb") as ids, ExitStack() as files:
        for identity, size, tokens in documents:
            if not shards or shards[-1] >= shard_tokens:
                files.close()
                shard = files.enter_context((temporary / f"shard-{len(shards):05d}.bin").open("wb"))
                shards.append(0)
            shard.write(np.append(tokens, EOS).astype(np.dtype(dtype).newbyteorder("<")).tobytes())
            shards[-1] += len(tokens) + 1
            offsets.append(offsets[-1] + len(tokens) + 1)
            lengths.append(size)
            ids_end.append(ids_end[-1] + ids.write(identity.encode()))
        files.close()
        for name, column in (("offsets", offsets), ("bytes", lengths), ("ids", ids_end)):
            np.save(temporary / f"{name}.npy", np.asarray(column, dtype=np.int64))
        index = StoreIndex(dtype, vocab_size, tokenizer_sha256, len(lengths), offsets[-1], shards, FORMAT)
        (temporary / "index.json").write_text(json.dumps(asdict(index), indent=2), encoding="utf-8")
    return index


class TokenStore:
    """A token store opened for reading; tokens are read from disk on demand."""

    def __init__(self, folder: Path) -> None:
        """Open and verify a store; UserError if it is missing, damaged, or of another format."""
        verify_checksums(folder)
        self.folder = folder
        self.index = from_json(StoreIndex, folder / "index.json")
        if self.index.format != FORMAT:
            raise UserError(
                f"{folder}/index.json.format: found {self.index.format}; expected {FORMAT}: run `dvc repro pack`"
            )
        self.offsets: np.ndarray = np.asarray(np.load(folder / "offsets.npy", mmap_mode="r"))
        self.bytes: np.ndarray = np.asarray(np.load(folder / "bytes.npy", mmap_mode="r"))
        self.digest = sha256_file(folder / CHECKSUMS)
        dtype = np.dtype(self.index.dtype).newbyteorder("<")
        names = [folder / f"shard-{i:05d}.bin" for i in range(len(self.index.shards))]
        # As plain arrays, still mapped: a slice of a memmap takes five times as long.
        self._shards = [np.asarray(np.memmap(name, dtype=dtype, mode="r")) for name in names]
        self._begins = list(accumulate(self.index.shards, initial=0))

    def __len__(self) -> int:
        return self.index.tokens

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``[start, stop)`` of the stream as int64, across shards if necessary."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens [{start}, {stop}) of a store of {len(self)}")
        first = bisect_right(self._begins, start) - 1
        parts = []
        while start < stop:
            begin = self._begins[first]
            end = min(stop, self._begins[first + 1])
            parts.append(self._shards[first][start - begin : end - begin])
            start = end
            first += 1
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)

    def spans(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """``lengths`` [S] tokens from each of ``starts`` [S], concatenated, as int64.

        One slice per span, then one copy of all: for the few rows of a batch, faster than an index per token.
        """
        parts = [np.empty(0, dtype=np.int64)] if not len(starts) else []
        begins, shards = self._begins, self._shards
        for start, stop in zip(starts.tolist(), (starts + lengths).tolist(), strict=True):
            shard = bisect_right(begins, start, 0, len(shards)) - 1
            if shard >= 0 and start <= stop <= begins[shard + 1]:
                parts.append(shards[shard][start - begins[shard] : stop - begins[shard]])
            else:
                parts.append(self.tokens(start, stop))
        return np.concatenate(parts).astype(np.int64, copy=False)

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """``length`` tokens from each of ``starts`` [B], as int64 ``[B, length]``."""
        return self.spans(starts, np.full(len(starts), length)).reshape(len(starts), length)

    def ids(self, documents: Sequence[int]) -> list[str]:
        """The ids of the documents with these numbers (their places in the stream)."""
        ends = np.load(self.folder / "ids.npy", mmap_mode="r")
        with (self.folder / "ids.txt").open("rb") as file:
            names = []
            for document in documents:
                file.seek(int(ends[document]))
                names.append(file.read(int(ends[document + 1] - ends[document])).decode())
        return names

    def within(self, start: int, stop: int) -> range:
        """The numbers of the documents that have a token in [start, stop) of the stream."""
        first = int(self.offsets.searchsorted(start, side="right")) - 1
        return range(first, max(first + 1, int(self.offsets.searchsorted(stop, side="left"))))

    def documents(self) -> Iterator[np.ndarray]:
        """The tokens of each document in order, its EOS included."""
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.tokens(int(start), int(stop))

    def require(self, tokenizer: Tokenizer) -> None:
        if self.index.tokenizer_sha256 != tokenizer.sha256:
            raise UserError(
                f"{self.folder}: made by the tokenizer {self.index.tokenizer_sha256[:12]}; expected "
                f"{tokenizer.sha256[:12]} ({tokenizer.path}): run `dvc repro pack`"
            )


class SomeDocuments(TokenStore):
    """Some of a store's documents, in their order, as a stream of their own."""

    def __init__(self, store: TokenStore, numbers: np.ndarray) -> None:
        """``numbers`` are the documents' places in ``store``, sorted."""
        self.folder, self.digest = store.folder, store.digest
        self.offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.diff(store.offsets)[numbers].cumsum()))
        self.bytes = store.bytes[numbers]
        self.index = replace(store.index, documents=len(numbers), tokens=int(self.offsets[-1]))
        self._store, self._numbers = store, numbers

    def tokens(self, start: int, stop: int) -> np.ndarray:
        parts = [np.empty(0, dtype=np.int64)]
        for place in self.within(start, stop) if start < stop else ():
            moved = int(self._store.offsets[self._numbers[place]] - self.offsets[place])
            first = max(start, int(self.offsets[place]))
            parts.append(self._store.tokens(first + moved, min(stop, int(self.offsets[place + 1])) + moved))
        return np.concatenate(parts)

    def spans(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        ends = (starts + lengths).tolist()
        return np.concatenate([self.tokens(start, stop) for start, stop in zip(starts.tolist(), ends, strict=True)])

    def ids(self, documents: Sequence[int]) -> list[str]:
        return self._store.ids(self._numbers[list(documents)].tolist())
