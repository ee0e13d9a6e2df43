"""What snapshots cost the steps between them. `make bench-snapshot`.

A GPT of the bench's shape is trained in turns with a snapshot every ten steps and with none; the growth of the time is
divided by ten: a snapshot every hundred steps. Steps take the time of the wall clock, for a snapshot is written by
another thread and may take a core away from them.
"""

import itertools
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from plm_core.models.gpt import GPT, GPTConfig
from plm_core.objectives.causal import Causal, causal_batch
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

TURNS, EVERY = 6, 10
CONFIG = LoopConfig(
    seed=1, steps=EVERY * (TURNS + 2), batch=16, optimizer=OptimizerConfig(1e-3, 5), precision="bfloat16",
    report_every=EVERY, valid_every=EVERY * 1000, snapshot_every=EVERY,
)  # fmt: skip


def turns(config, device, folder):
    """The seconds of every ``EVERY`` steps, what is saved between them included."""
    torch.manual_seed(1)
    model = GPT(GPTConfig(vocab_size=8192, context=256, layers=4, heads=4, width=256, dropout=0.0))
    rows = np.random.default_rng(1).integers(8192, size=(16, 257))
    reports = train(
        model, Causal().loss, lambda _: causal_batch(rows), lambda _: Validation(1.0), config, device, Snapshots(folder)
    )
    while True:
        start = perf_counter()
        if next(reports, None) is None:
            return
        yield perf_counter() - start


def main():
    device = prepare()
    never = replace(CONFIG, snapshot_every=EVERY * 1000)
    with tempfile.TemporaryDirectory() as name:
        sides = [turns(config, device, Path(name) / str(i)) for i, config in enumerate((CONFIG, never))]
        pairs = list(itertools.islice(zip(*sides, strict=False), 1, TURNS + 1))
        for side in sides:
            side.close()
    ratio = statistics.median(saved / plain for saved, plain in pairs)
    step = statistics.median(plain for _, plain in pairs) / EVERY
    print(f"{device.threads} threads, a step of {step:.2f} s; medians of {TURNS} turns of {EVERY} steps")
    print(f"a snapshot every {EVERY} steps: {ratio - 1:+.1%}; every 100 steps: {(ratio - 1) * EVERY / 100:+.2%}")


if __name__ == "__main__":
    main()
