"""A small compiled training in a process of its own: `compiled_run.py FOLDER PRECISION [REPORTS]`.

Closes after REPORTS reports, or goes to the end and prints the digest of the weights and the losses.
"""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import torch
from folds import CAUSAL, CONFIG, batch_at, validate

from plm_core.models.gpt import GPT, GPTConfig
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.snapshot import Snapshots


def main(folder, precision, stop=None):
    device = prepare()
    torch.manual_seed(5)
    model = GPT(GPTConfig(vocab_size=37, context=13, layers=1, heads=3, width=48, dropout=0.3))
    config = replace(CONFIG, compile=True, precision=precision)
    reports = train(model, CAUSAL.loss, batch_at, validate, config, device, Snapshots(Path(folder)))
    if stop is not None:
        for _ in range(int(stop)):
            next(reports)
        reports.close()
        return
    losses = [report.loss for report in reports]
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    print(device.threads, *model.state_dict(), hashlib.sha256(weights).hexdigest(), losses)


if __name__ == "__main__":
    main(*sys.argv[1:])
