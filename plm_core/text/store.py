"""The token store: a split's documents as one stream of token ids in memory-mapped shards. Written by pack.

A folder with ``shard-NNNNN.bin`` (little-endian uint16, or uint32 when the vocabulary asks for it), ``offsets.npy``
(int64, documents + 1: where each document begins in the stream), ``bytes.npy`` (int64: each document's UTF-8 length),
``ids.json`` (each document's id), ``index.json`` and ``SHA256SUMS``. Every document ends with EOS.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from plm_core.config import BadInput, from_dict
from plm_core.files import CHECKSUMS, atomic_folder, sha256_file, verify_checksums
from plm_core.text.special import EOS
from plm_core.text.tokenizer import Tokenizer

DOCUMENTS_AT_ONCE = 256


@dataclass(frozen=True)
class Index:
    """``index.json``."""

    dtype: str
    """``uint16`` or ``uint32``."""
    vocab_size: int
    """Of the tokenizer that made the tokens."""
    tokenizer_sha256: str
    """The digest of that tokenizer's file."""
    documents: int
    """How many documents, each ended by EOS."""
    tokens: int
    """How many tokens, EOS included."""
    shards: list[int]
    """Tokens in each shard."""


def write_store(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    shard_tokens: int = 1 << 27,
    threads: int = 1,
) -> Index:
    """Encode ``(id, text)`` pairs into a token store; the folder appears whole or not at all."""
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    shards: list[int] = []
    offsets, lengths, ids = [0], [], []
    stream = iter(documents)
    with atomic_folder(folder) as temporary:
        shard: BinaryIO | None = None
        while batch := list(islice(stream, DOCUMENTS_AT_ONCE)):
            for (identity, text), tokens in zip(
                batch, tokenizer.encode_batch([t for _, t in batch], threads), strict=True
            ):
                if shard is None or shards[-1] >= shard_tokens:
                    if shard is not None:
                        shard.close()
                    shard = (temporary / f"shard-{len(shards):05d}.bin").open("wb")
                    shards.append(0)
                shard.write(np.append(tokens, EOS).astype(_little_endian(dtype)).tobytes())
                shards[-1] += len(tokens) + 1
                offsets.append(offsets[-1] + len(tokens) + 1)
                lengths.append(len(text.encode()))
                ids.append(identity)
        if shard is not None:
            shard.close()
        np.save(temporary / "offsets.npy", np.asarray(offsets, dtype=np.int64))
        np.save(temporary / "bytes.npy", np.asarray(lengths, dtype=np.int64))
        (temporary / "ids.json").write_text(json.dumps(ids, ensure_ascii=False, indent=0), encoding="utf-8")
        index = Index(dtype, tokenizer.vocab_size, tokenizer.sha256, len(ids), offsets[-1], shards)
        (temporary / "index.json").write_text(json.dumps(asdict(index), indent=2), encoding="utf-8")
    return index


class TokenStore:
    """A token store opened for reading; tokens stay on disk until they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Open and verify a store.

        Raises:
            BadInput: the folder is missing, or a file's checksum fails.
        """
        verify_checksums(folder)
        self.folder = folder
        self.index = from_dict(Index, json.loads((folder / "index.json").read_text()), f"{folder}/index.json")
        self.offsets: np.ndarray = np.load(folder / "offsets.npy")
        self.bytes: np.ndarray = np.load(folder / "bytes.npy")
        self.digest = sha256_file(folder / CHECKSUMS)
        dtype = _little_endian(self.index.dtype)
        self._shards = [
            np.memmap(folder / f"shard-{i:05d}.bin", dtype=dtype, mode="r") for i in range(len(self.index.shards))
        ]
        self._starts = np.concatenate([[0], np.cumsum(self.index.shards)]).astype(np.int64)

    def __len__(self) -> int:
        """The number of tokens."""
        return self.index.tokens

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``[start, stop)`` of the stream as int64, across shards where they lie so."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens [{start}, {stop}) of a store of {len(self)}")
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        while start < stop:
            end = min(stop, int(self._starts[first + 1]))
            parts.append(self._shards[first][start - self._starts[first] : end - self._starts[first]])
            start, first = end, first + 1
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)

    def documents(self) -> Iterator[np.ndarray]:
        """The tokens of each document in order, its EOS included."""
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.tokens(int(start), int(stop))

    def require(self, tokenizer: Tokenizer) -> None:
        """Raise BadInput unless this store was made by ``tokenizer``."""
        if self.index.tokenizer_sha256 != tokenizer.sha256:
            raise BadInput(
                f"{self.folder}: made by the tokenizer {self.index.tokenizer_sha256[:12]}; expected "
                f"{tokenizer.sha256[:12]} ({tokenizer.path}): run `dvc repro pack`"
            )


def _little_endian(dtype: str) -> np.dtype:
    return np.dtype(dtype).newbyteorder("<")
