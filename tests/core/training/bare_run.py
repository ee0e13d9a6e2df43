"""Text to trained weights for each paper; prints the losses of each. Run by ``test_bare_machine.py``."""

import tempfile
from pathlib import Path

from plm_core.configs.architectures import MODELS
from plm_core.objectives import build_objective
from plm_core.text.token_store import TokenStore, write_store
from plm_core.text.tokenizer_kinds import read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import TokenizerConfig
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

TEXTS = [" ".join(f"w{i * j % 97}" for j in range(300)) for i in range(40)]
LOOP = LoopConfig(1, 6, 4, OptimizerConfig(1e-2, 1), report_every=2, valid_every=2, snapshot_every=2)
OBJECTIVES = {
    "gpt": {"name": "causal"},
    "llama": {"name": "causal"},
    "bert": {"name": "masked", "next_sentence": True},
    "modernbert": {"name": "masked"},
    "xlnet": {"name": "permutation"},
}


def losses(name, store, folder):
    kind = MODELS[name]
    model = kind.model(kind.config(vocab_size=300, context=32, layers=1, heads=2, width=32))
    objective = build_objective(OBJECTIVES[name], "objective")
    batches = objective.batches(store, model.config, LOOP.batch)

    def validate(evaluate):
        loss = evaluate(batches.held_out(4)[0], None)
        return Validation(float(loss.nll / loss.num_targets))

    device, snapshots = prepare(threads=1), Snapshots(folder / name)
    reports = train(model, objective.loss, lambda step: batches.at(1, step), validate, LOOP, device, snapshots)
    return [report.loss for report in reports]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = train_tokenizer(TEXTS, TokenizerConfig("bpe", 300))
        tokenizer = read_tokenizer(folder / "tokenizer.model", model)
        write_store(folder / "train", ((str(i), text) for i, text in enumerate(TEXTS)), tokenizer)
        for paper in OBJECTIVES:
            print(paper, *losses(paper, TokenStore(folder / "train"), folder))


if __name__ == "__main__":
    main()
