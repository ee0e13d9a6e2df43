"""How many tokens a second a model continues a text with, and what the cache is worth. `make bench-generate`.

Freshly initialised models of one size (the weights change the text, not the time) take the most likely token, one row,
so many tokens after a prompt of so many, all within the window. Cached and uncached runs take turns, after one of each
that is not counted; shown are medians. Both give the same logits (tests/core/generation/test_windows.py).
"""

import statistics
import time
from typing import Any

import torch

from plm_core.generation import Decoding
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.training.device import prepare

SHAPE = {"vocab_size": 4096, "layers": 4, "heads": 4, "width": 256}
WINDOW, PROMPT, NEW, REPETITIONS = 256, 128, 96, 3


@torch.no_grad()
def seconds(model: Any, objective: str, use_cache: bool) -> float:
    """The time of one continuation."""
    reading = Decoding(model.eval(), objective)
    text = list(range(99, 99 + PROMPT))
    start = time.perf_counter()
    for _ in range(NEW):
        text.append(int(reading.logits([text]).argmax()))
        reading.state = reading.state if use_cache else None
    return time.perf_counter() - start


def bench() -> None:
    """Print the table."""
    # One thread: with more, what else runs on the machine would be measured too.
    device = prepare(threads=1)
    torch.manual_seed(0)
    # Half of XLNet's window is its memory; all of GPT's is its context.
    relative = XLNetConfig(context=WINDOW // 2, memory=WINDOW // 2, **SHAPE)
    kinds = {
        "GPT": (GPT(GPTConfig(context=WINDOW, **SHAPE)), "causal"),
        "Transformer-XL": (XLNet(relative), "causal"),
        "XLNet": (XLNet(relative), "permutation"),
    }
    print(f"torch {torch.__version__}, {device.device.type}, {device.threads} thread(s), float32")
    print(f"{SHAPE}, window {WINDOW}, prompt {PROMPT}, {NEW} new tokens, medians of {REPETITIONS}")
    print(f"{'model':<16}{'parameters':>12}{'cached':>12}{'uncached':>12}{'ratio':>8}")
    for name, (model, objective) in kinds.items():
        model.to(device.device)
        times: dict[bool, list[float]] = {True: [], False: []}
        for repetition in range(REPETITIONS + 1):
            for use_cache in (True, False):
                taken = seconds(model, objective, use_cache)
                if repetition:
                    times[use_cache].append(taken)
        cached, uncached = (NEW / statistics.median(times[use_cache]) for use_cache in (True, False))
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name:<16}{size:>12,}{cached:>10.0f}/s{uncached:>10.0f}/s{cached / uncached:>8.1f}", flush=True)


if __name__ == "__main__":
    bench()
