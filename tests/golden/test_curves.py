"""Twenty steps of each paper in float64, to ten digits: whatever changes the numbers of a training is seen here.

The JSON files were written by this file and are written anew, when a change is meant, by

    python tests/golden/test_curves.py [PAPER ...]
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from plm_core.configs.architectures import EncoderDecoderConfig
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.elmo import ELMo, ELMoConfig
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.modernbert import ModernBERT, ModernBERTConfig
from plm_core.models.t5 import T5, T5Config
from plm_core.models.transformer import Transformer
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.objectives.bidirectional import Bidirectional
from plm_core.objectives.causal import Causal
from plm_core.objectives.hybrid import Hybrid
from plm_core.objectives.masked import Masked
from plm_core.objectives.permutation import Permutation
from plm_core.objectives.span_corruption import SpanCorruption
from plm_core.text.tokenizers import EOS
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import Device
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

FOLDER = Path(__file__).parent
SIZES = {"vocab_size": 37, "context": 13, "layers": 2, "heads": 3, "dropout": 0.0}
LSTM = {"vocab_size": 37, "context": 13, "layers": 2, "width": 22, "cells": 17, "dropout": 0.0}
LSTM |= {"characters": 5, "longest": 9, "filters": ((1, 7), (3, 9))}
PAPERS = {
    "gpt": (GPT, GPTConfig(**SIZES, width=21), Causal()),
    "llama": (Llama, LlamaConfig(**SIZES, width=24, kv_heads=1), Causal()),
    "gpt_bert": (Llama, LlamaConfig(**SIZES, width=24, kv_heads=1), Hybrid(masked_rows=0.6, rate=0.3)),
    "bert": (BERT, BERTConfig(**SIZES, width=21), Masked(rate=0.3, next_sentence=True)),
    "modernbert": (ModernBERT, ModernBERTConfig(**SIZES, width=24, global_every=2, window=6), Masked(rate=0.3)),
    "gpt_documents": (GPT, GPTConfig(**SIZES, width=21), Causal(packing="documents")),
    "bert_documents": (BERT, BERTConfig(**SIZES, width=21), Masked(rate=0.4, packing="documents")),
    "elmo": (ELMo, ELMoConfig(**LSTM), Bidirectional()),
    "xlnet": (XLNet, XLNetConfig(**SIZES, width=24, memory=5), Permutation(predict=2, reuse=7)),
    "transformer_xl": (XLNet, XLNetConfig(**SIZES, width=24, memory=11), Causal(streams=True)),
    "t5": (T5, T5Config(**SIZES, width=21, sentinels=3), SpanCorruption(rate=0.3, span=2)),
    "transformer": (
        Transformer,
        EncoderDecoderConfig(**SIZES, width=21, sentinels=3),
        SpanCorruption(rate=0.3, span=2),
    ),
}


@dataclass(frozen=True)
class Text:
    """A token store in memory, so that no tokenizer has a part in the numbers: in its documents each token follows from
    the two before it, which is something to learn."""

    stream: np.ndarray
    offsets: np.ndarray
    folder = Path("memory")
    index = SimpleNamespace(vocab_size=SIZES["vocab_size"])

    @classmethod
    def made(cls, seed, documents):
        draw = np.random.Generator(np.random.PCG64(seed))
        texts = []
        for length in draw.integers(5, 99, documents):
            ids = list(draw.integers(7, 37, 2))
            for _ in range(length):
                ids.append(7 + (3 * ids[-1] + 5 * ids[-2] + 1) % 30)
            texts.append([*ids, EOS])
        return cls(np.concatenate(texts), np.cumsum([0, *map(len, texts)]))

    def __len__(self):
        return len(self.stream)

    def tokens(self, start, stop):
        return self.stream[start:stop]

    def spans(self, starts, lengths):
        return np.concatenate([self.stream[a : a + n] for a, n in zip(starts, lengths, strict=True)])

    def rows(self, starts, length):
        return np.stack([self.stream[a : a + length] for a in starts])


def initial_model(paper):
    """A tiny model whose weights do not depend on torch's way of drawing random numbers."""
    kind, config, objective = PAPERS[paper]
    model = kind(config).double()
    draw = np.random.Generator(np.random.PCG64(7))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(torch.from_numpy(mean + 0.1 * draw.standard_normal(parameter.shape)))
    return model, objective


def curve(paper):
    """The reports of 20 steps, validation included."""
    torch.set_num_threads(1)
    model, objective = initial_model(paper)
    training, held_out = (
        objective.batches(Text.made(seed, documents), model.config, 8) for seed, documents in ((5, 37), (3, 13))
    )

    def validate(evaluate):
        loss, total, count = None, 0.0, 0
        for batch in held_out.held_out(16):
            loss = evaluate(batch, loss.carry if loss else None)
            total, count = total + float(loss.nll), count + int(loss.num_targets)
        return Validation(total / count)

    optimizer = OptimizerConfig(learning_rate=3e-3, warmup_steps=5)
    config = LoopConfig(
        seed=1, steps=20, batch=8, accumulation=2, optimizer=optimizer, report_every=1, valid_every=5, snapshot_every=5
    )
    with tempfile.TemporaryDirectory() as folder:
        device = Device(torch.device("cpu"), 1, False)
        snapshots = Snapshots(Path(folder))
        reports = train(model, objective.loss, lambda step: training.at(13, step), validate, config, device, snapshots)
        return [
            {
                "step": r.step,
                "predictions": r.predictions,
                "loss": r.loss,
                "gradient_norm": r.gradient_norm,
                "learning_rate": r.learning_rate,
                "valid_loss": r.valid_loss,
            }
            for r in reports
        ]


@pytest.mark.parametrize("paper", PAPERS)
def test_twenty_steps_give_the_recorded_numbers(paper):
    measured, golden = curve(paper), json.loads((FOLDER / f"{paper}.json").read_text())
    assert len(measured) == len(golden) == 20
    for step, (actual, recorded) in enumerate(zip(measured, golden, strict=True), start=1):
        assert actual.keys() == recorded.keys()
        for name, value in recorded.items():
            expected = value if value is None else pytest.approx(value, rel=1e-10, abs=0)
            assert actual[name] == expected, f"{name} of step {step}"
    assert golden[-1]["valid_loss"] < golden[4]["valid_loss"]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PAPERS:
        (FOLDER / f"{chosen}.json").write_text(json.dumps(curve(chosen), indent=1) + "\n")
