"""How many tokens a second a training could read from a token store, by batch and shape. `make bench-reading`.

A store of 100 million random tokens is written, so that it lies in the page cache, and the batches of random steps are
made as the causal objective makes them, inputs and targets as tensors; beside it, the rows alone. Shown are medians of
blocks of steps, and only inputs are counted. One thread, as numpy reads. Last, how long the packing of a million pieces
takes.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from plm_core.objectives.causal import Causal
from plm_core.text.packing import best_fit
from plm_core.text.samplers import Windows
from plm_core.text.token_store import TokenStore, write_tokens

TOKENS, DOCUMENTS, SHARDS = 100_000_000, 200_000, 3
MODELS = [(16, 128), (64, 128), (16, 512), (16, 1024), (64, 1024)]
SEED, REPETITIONS, BLOCK_S = 7, 7, 0.3


def millions(read: Callable[[int], int]) -> float:
    """Million tokens a second, where ``read(step)`` says how many it read."""
    steps = np.random.Generator(np.random.PCG64(SEED)).integers(0, 2000, 100_000).tolist()
    rates, place = [], 0
    read(0)  # the order of the epoch, or the packing
    for _ in range(REPETITIONS + 1):
        start, tokens = time.perf_counter(), 0
        while (taken := time.perf_counter() - start) < BLOCK_S:
            for _ in range(20):
                tokens += read(steps[place % len(steps)])
                place += 1
        rates.append(tokens / taken / 1e6)
    return statistics.median(rates[1:])


def batches(store: TokenStore, rows: int, length: int, **objective: Any) -> Callable[[int], int]:
    """Reads the batch of a step, and says how many tokens its inputs hold."""
    sizes = {"context": length} | ({"memory": length} if objective.get("streams") else {})
    made = Causal(**objective).batches(store, SimpleNamespace(**sizes), rows)
    return lambda step: made.at(SEED, step).inputs.numel()


def bench() -> None:
    """Print the table."""
    draw = np.random.Generator(np.random.PCG64(SEED))
    with tempfile.TemporaryDirectory() as folder:
        sizes = np.maximum(1, draw.lognormal(5.5, 1.2, DOCUMENTS)).astype(np.int64)
        sizes = np.maximum(1, sizes * TOKENS // sizes.sum())
        documents = ((f"d{i}", 1, draw.integers(7, 4096, size)) for i, size in enumerate(sizes))
        write_tokens(Path(folder) / "store", documents, 4096, "0f", TOKENS // SHARDS)
        store = TokenStore(Path(folder) / "store")
        print(
            f"numpy {np.__version__}; {len(store):,} tokens, {len(store.index.shards)} shards, {DOCUMENTS:,} documents"
        )
        print(f"{'rows':>6}{'tokens':>8}{'rows alone':>12}{'windows':>12}{'streams':>12}{'documents':>12}   M tokens/s")
        for rows, length in MODELS:
            windows = Windows(store, length, length)
            rates = [
                millions(lambda step, view=windows, rows=rows: view.rows_at(SEED, step, rows).size),
                millions(batches(store, rows, length)),
                millions(batches(store, rows, length, streams=True)),
                millions(batches(store, rows, length, packing="documents")),
            ]
            print(f"{rows:>6}{length:>8}" + "".join(f"{rate:>12.0f}" for rate in rates), flush=True)
    for capacity in (128, 1024, 8192):
        pieces = np.minimum(capacity, draw.lognormal(np.log(capacity / 6), 1, 1_000_000).astype(np.int64) + 1)
        start = time.perf_counter()
        opened = int(best_fit(pieces, capacity).max()) + 1
        taken, used = time.perf_counter() - start, pieces.sum() / (opened * capacity)
        print(f"1,000,000 pieces into rows of {capacity}: {taken:.2f} s, {used:.3%} of the positions used")


if __name__ == "__main__":
    bench()
