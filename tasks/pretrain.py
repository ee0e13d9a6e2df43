"""Stage pretrain: one architecture from scratch on the token store. `python -m tasks.pretrain <section>`."""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from plm_core import checkpoint
from plm_core.config import digest
from plm_core.files import verify_checksums
from plm_core.objectives import OBJECTIVES
from plm_core.objectives.loss import Batch
from plm_core.text.store import TokenStore
from plm_core.text.tokenizer import MODEL_FILE, Tokenizer
from plm_core.text.views import Windows, stream_seed
from plm_core.training.device import prepare
from plm_core.training.loop import LoopConfig, best_report, train
from plm_core.training.snapshot import Snapshots
from tasks.seam import params, paths
from tasks.seam.stage import main, stage
from tasks.seam.training import follow, write_curve


@dataclass(frozen=True)
class PretrainConfig:
    """Section ``pretrain.<name>`` of the parameters."""

    architecture: str
    """A name in ``plm_core.models.MODELS``."""
    objective: str
    """A name in ``plm_core.objectives.OBJECTIVES``."""
    model: dict[str, Any]
    """The architecture's configuration, without the vocabulary."""
    training: LoopConfig
    """The loop and its optimizer."""
    valid_windows: int = 256
    """How many windows of the validation split choose the best checkpoint."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: found {self.objective!r}; expected one of {', '.join(OBJECTIVES)}")
        if "vocab_size" in self.model:
            raise ValueError("model.vocab_size: comes from tokenizer.vocab_size; expected it to be left out")
        if self.valid_windows < 1:
            raise ValueError(f"valid_windows: {self.valid_windows}; expected at least 1")


def pretrain(name: str) -> None:
    """Train the model of section ``pretrain.<name>`` and write its checkpoint and loss curve."""
    section = f"pretrain.{name}"
    config = params.section(section, PretrainConfig)
    objective, loop = OBJECTIVES[config.objective], config.training
    metrics_file = paths.METRICS / f"pretrain-{name}.json"
    with stage(f"pretrain-{name}", [section], [paths.TOKENS, paths.TOKENIZER], metrics_file) as run:
        device = prepare()
        verify_checksums(paths.TOKENIZER)
        tokenizer = Tokenizer(paths.TOKENIZER / MODEL_FILE)
        torch.manual_seed(stream_seed(loop.seed, "weights"))
        shape = config.model | {"vocab_size": tokenizer.vocab_size}
        model: Any = checkpoint.build(config.architecture, shape, section).to(device.device)
        train_set, valid_set = (_windows(split, model.config.context, tokenizer) for split in ("train", "valid"))
        held_out = objective.batch(valid_set.first_rows(config.valid_windows))

        def batch_at(step: int) -> Batch:
            return objective.batch(train_set.rows_at(stream_seed(loop.seed, "order"), step, loop.batch))

        @torch.no_grad()
        def validate(candidate: nn.Module) -> float:
            parts = held_out.split(max(1, len(held_out.inputs) // loop.batch))
            losses = [objective.loss(candidate, part.to(device.device)) for part in parts]
            return float(sum(loss.nats.double() for loss in losses) / sum(loss.count for loss in losses))

        snapshots = Snapshots(paths.SNAPSHOTS / digest(config, run.inputs, run.guard.code)[:16])
        reports = follow(
            train(model, objective.loss, batch_at, validate, loop, device, snapshots), loop.steps, run, section
        )
        best = best_report(reports)
        described = checkpoint.CheckpointConfig(
            format=checkpoint.FORMAT,
            architecture=config.architecture,
            objective=config.objective,
            model=vars(model.config),
            tokenizer_sha256=tokenizer.sha256,
            step=best.step,
            valid_nats=float(best.valid_loss or 0.0),
        )
        folder = paths.MODELS / name
        identity = checkpoint.save(folder, model, tokenizer, described)
        write_curve(paths.CURVES / f"{name}.csv", reports)
        run.metrics |= {
            "parameters": sum(p.numel() for p in model.parameters()),
            "tokens": sum(r.predictions for r in reports),
            "best_step": best.step,
            "valid_nats_per_token": described.valid_nats,
            "final_train_loss": reports[-1].loss,
        }
        run.outputs += [folder, paths.CURVES / f"{name}.csv"]
        run.tracker.checkpoint(folder, identity, run.metrics)
    snapshots.remove()


def _windows(split: str, context: int, tokenizer: Tokenizer) -> Windows:
    store = TokenStore(paths.TOKENS / split)
    store.require(tokenizer)
    return Windows(store, context)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a section below `pretrain` in params.yaml")
    arguments = parser.parse_args()
    main(lambda: pretrain(arguments.name))
