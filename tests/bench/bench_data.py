"""What the stages that move text do a second, beside the libraries that people would use. `make bench-data`.

Each pair takes turns on the same text, after one round that is not counted; shown are medians. One process and one
thread each, unless a library takes more by itself. Then how the time of the project's own work grows with the text.
Writes ``artifacts/bench/data.json``.
"""

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plm_core.corpus.cleaning import Bounds, CleanConfig, clean_document
from plm_core.corpus.document import Document
from plm_core.corpus.minhash import Similarity, find_duplicates, write_index
from plm_core.corpus.normalize import paragraphs
from plm_core.corpus.part_pool import Pool
from plm_core.corpus.sources import SOURCES, open_source
from plm_core.text.packing import Packed
from plm_core.text.token_store import TokenStore, write_store
from plm_core.text.tokenizer_kinds import read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import TokenizerConfig

os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
MANIFEST = "plm_core/corpus/sources/sotu.json"
OUT = Path("artifacts/bench/data.json")
ROUNDS = 3
VOCABULARY, LENGTH = 8192, 1024
SIMILARITY = Similarity()
SIZES_MB = (10, 30, 90)
WORDS_A_DOCUMENT, COPIES = 500, 0.2
RULES = CleanConfig(
    paragraphs={"words": Bounds(min=4, max=2000)},
    documents={
        "words": Bounds(50, 100_000),
        "mean_word_length": Bounds(3, 10),
        "alphabetic_word_share": Bounds(min=0.8),
        "stop_words": Bounds(min=2),
    },
)


def planted(words: np.ndarray, megabytes: int) -> Iterator[str]:
    """Documents of words drawn from a text, a fifth of them copies with a few words changed."""
    draw = np.random.Generator(np.random.PCG64(1))
    size, before = 0, []
    while size < megabytes * 1e6:
        if before and draw.random() < COPIES:
            tokens = before[draw.integers(len(before))].copy()
            tokens[draw.integers(0, len(tokens), draw.integers(0, 12))] = "changed"
        else:
            tokens = words[draw.integers(0, len(words), WORDS_A_DOCUMENT)]
            before = [*before[-999:], tokens]
        text = " ".join(tokens)
        size += len(text.encode())
        yield text


def near_dedup(texts: Sequence[str]) -> None:
    """The project's: shingles, signatures, bands, verification of all candidates, groups."""
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch, "indexes/000000")
        index.mkdir(parents=True)
        write_index(texts, SIMILARITY, index)
        find_duplicates(index.parent, SIMILARITY, Pool(Path(scratch, "pool"), 1))


def near_dedup_datasketch(texts: Sequence[str]) -> None:
    """datasketch: signatures of as many permutations, bands as wide, the candidates of each text; none is verified."""
    from datasketch import MinHash, MinHashLSH

    K, n = SIMILARITY.bands * SIMILARITY.rows, SIMILARITY.shingle
    index = MinHashLSH(num_perm=K, params=(SIMILARITY.bands, SIMILARITY.rows))
    for row, text in enumerate(texts):
        tokens = text.casefold().split()
        signature = MinHash(num_perm=K)
        signature.update_batch([" ".join(tokens[i : i + n]).encode() for i in range(max(1, len(tokens) - n + 1))])
        index.query(signature)
        index.insert(row, signature)


def train_library(texts: Sequence[str]) -> Any:
    """tokenizers: byte-level BPE, the nearest that it has: no character is unknown to either."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def encode_datasets(texts: Sequence[str], tokenizer: Any) -> Any:
    """datasets.map with a batch of texts given to tokenizers at once, which takes all cores; written as Arrow."""
    import datasets

    def encoded(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"ids": [encoding.ids for encoding in tokenizer.encode_batch_fast(batch["text"])]}

    source = datasets.Dataset.from_dict({"text": list(texts)})
    return source.map(encoded, batched=True, remove_columns=["text"], load_from_cache_file=False, keep_in_memory=False)


def pack_datasets(encoded: Any) -> None:
    """The examples' way (`group_texts` of transformers): concatenate, cut into rows, read every row as an array."""

    def grouped(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        stream = list(itertools.chain.from_iterable(batch["ids"]))
        return {"ids": [stream[i : i + LENGTH] for i in range(0, len(stream) - LENGTH + 1, LENGTH)]}

    rows = encoded.map(grouped, batched=True, load_from_cache_file=False).with_format("numpy")
    for start in range(0, len(rows), 16):
        rows[start : start + 16]["ids"]


def pack(store: TokenStore) -> None:
    """The project's: best-fit packing of whole documents, and every row read once, laid out with its documents."""
    packed = Packed(store, LENGTH)
    for start in range(0, len(packed), 16):
        items = np.arange(start, min(start + 16, len(packed)))
        packed.laid_out(packed.pieces(items), len(items))


def seconds(*works: Callable[[], Any]) -> list[float]:
    """The median time of each, taking turns; a round that is not counted comes first."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS + 1):
        for taken, work in zip(times, works, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in times]


def compared(work: str, amount: float, unit: str, peer_name: str, *works: Callable[[], Any]) -> dict[str, Any]:
    """The project's work beside a peer's, printed and as a row of the file."""
    ours, peer = (amount / taken for taken in seconds(*works))
    print(f"{work:<18}{ours:>10.1f}{peer:>10.1f}{ours / peer:>8.1f}   {unit:<12} {peer_name}", flush=True)
    figures = {"ours": round(ours, 3), "peer": round(peer, 3), "ratio": round(ours / peer, 3)}
    return {"work": work, "unit": unit, "peer_name": peer_name} | figures


def bench() -> None:
    """Print the tables and write the file."""
    import datasets
    import datasketch
    import tokenizers

    speeches = [d for d in open_source("sotu", SOURCES["sotu"](MANIFEST)) if isinstance(d, Document)]
    texts = [speech.text for speech in speeches]
    words = np.array(" ".join(texts).split())
    copies = list(planted(words, SIZES_MB[0]))
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(
        f"{len(os.sched_getaffinity(0))} cores; medians of {ROUNDS} rounds; {size:.1f} MB of text, BPE of {VOCABULARY}"
    )
    print(f"{'work':<18}{'ours':>10}{'peer':>10}{'ratio':>8}")
    rows = [
        compared(
            "near-dedup",
            sum(len(text.encode()) for text in copies) / 1e6,
            "MB/s",
            f"datasketch {datasketch.__version__}",
            lambda: near_dedup(copies),
            lambda: near_dedup_datasketch(copies),
        )
    ]
    config = TokenizerConfig("bpe", VOCABULARY)
    library, lines = f"tokenizers {tokenizers.__version__}", [line for text in texts for line in paragraphs(text)]
    rows.append(
        compared(
            "tokenizer-train",
            size,
            "MB/s",
            library,
            lambda: train_tokenizer(lines, config),
            lambda: train_library(lines),
        )
    )
    model, peer = train_tokenizer(lines, config), train_library(lines)
    with tempfile.TemporaryDirectory() as folder:
        named, store = list(zip(map(str, range(len(lines))), lines, strict=True)), Path(folder) / "store"
        both = f"datasets {datasets.__version__} + {library}"
        encode = compared(
            "encode",
            size,
            "MB/s",
            both,
            # Both remember words: they are read anew each time, so that none is remembered from the round before.
            lambda: write_store(store, named, read_tokenizer(Path("tokenizer.model"), model)),
            lambda: encode_datasets(lines, tokenizers.Tokenizer.from_str(peer.to_str())),
        )
        tokens, encoded = TokenStore(store), encode_datasets(lines, peer)
        packed = compared(
            "pack",
            sum(map(len, encoded["ids"])) / 1e6,  # of ours, the ends of documents too: counted for neither
            "M tokens/s",
            f"datasets {datasets.__version__} (group_texts)",
            lambda: pack(tokens),
            lambda: pack_datasets(encoded),
        )
    rows += [encode, packed]
    print(f"\n{'growth, MB/s':<18}" + "".join(f"{size:>8} MB" for size in SIZES_MB))
    for name, work in (("near-dedup", near_dedup), ("clean", clean)):
        rates = [size / seconds_of(work, list(planted(words, size))) for size in SIZES_MB]
        print(f"{name:<18}" + "".join(f"{rate:>11.1f}" for rate in rates), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(f"\n{OUT}")


def clean(texts: Sequence[str]) -> None:
    """The project's rules of quality, no language looked for."""
    for number, text in enumerate(texts):
        clean_document(Document(str(number), text, "planted"), RULES)


def seconds_of(work: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    work(texts)
    return time.perf_counter() - start


if __name__ == "__main__":
    bench()
