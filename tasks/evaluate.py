"""Stage evaluate: held-out likelihood and samples of one model. `python -m tasks.evaluate <name>`.

With `--checkpoint` and `--evidence` another checkpoint is measured on today's test split, and only its evidence is
written: that is how the gate compares a champion with a challenger on the same examples.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from plm_core import checkpoint
from plm_core.corpus.document import Document, read_documents
from plm_core.evaluation.likelihood import QUANTITY, DocumentScore, score, total
from plm_core.files import atomic_text, sha256_text
from plm_core.generation import SamplingConfig, generate
from plm_core.training.device import Device, prepare
from tasks.seam import params, paths
from tasks.seam.evidence import LIKELIHOOD_COLUMNS, write_rows
from tasks.seam.progress import Meter
from tasks.seam.stage import main, stage

TEST = paths.CORPUS / "test.parquet"


@dataclass(frozen=True)
class EvaluateConfig:
    """Section ``evaluate`` of the parameters."""

    stride: int
    """Tokens by which the window advances over a long document: the context for disjoint windows, or less."""
    prompts: list[str]
    """The beginnings of the sample texts."""
    sampling: SamplingConfig
    """How samples are drawn."""

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride: {self.stride}; expected at least 1")


def evaluate(name: str) -> None:
    """Measure the model that stage pretrain made, and write evidence, samples and metrics."""
    config = params.section("evaluate", EvaluateConfig)
    folder = paths.MODELS / name
    with stage(f"evaluate-{name}", ["evaluate"], [folder, TEST], paths.METRICS / f"evaluate-{name}.json") as run:
        device = prepare(threads=1)
        loaded = checkpoint.load(folder, device.device)
        evidence = paths.EVIDENCE / name / "likelihood.csv"
        result = total(_measure(loaded, config, device, evidence))
        samples = [_sample(loaded, prompt, config.sampling, draw) for draw, prompt in enumerate(config.prompts)]
        atomic_text(paths.SAMPLES / f"{name}.json", json.dumps(samples, indent=2, ensure_ascii=False) + "\n")
        run.metrics |= {
            QUANTITY: result.bits_per_byte,
            "nats_per_token": result.nats_per_token,
            "perplexity": result.perplexity,
            "tokens": result.tokens,
            "bytes": result.bytes,
        }
        run.outputs += [evidence, paths.SAMPLES / f"{name}.json"]
        run.tracker.checkpoint_metrics(loaded.digest, run.metrics)
        print(f"{name}: {result.bits_per_byte:.4f} {QUANTITY}, perplexity {result.perplexity:.1f} a token")


def evaluate_checkpoint(folder: Path, evidence: Path) -> None:
    """Measure any checkpoint on today's test split and write its evidence, nothing else."""
    device = prepare(threads=1)
    loaded = checkpoint.load(folder, device.device)
    _measure(loaded, params.section("evaluate", EvaluateConfig), device, evidence / "likelihood.csv")


def _sample(loaded: checkpoint.Loaded, prompt: str, sampling: SamplingConfig, draw: int) -> dict[str, str]:
    """One sample text; each prompt draws with a seed of its own, or all would go the same way."""
    own = replace(sampling, seed=sampling.seed + draw)
    return {"prompt": prompt, "continuation": generate(loaded.model, loaded.tokenizer, prompt, own)}


def _measure(loaded: checkpoint.Loaded, config: EvaluateConfig, device: Device, evidence: Path) -> list[DocumentScore]:
    documents = list(read_documents(TEST))
    pairs = ((loaded.tokenizer.encode(d.text), len(d.text.encode())) for d in documents)
    stride = min(config.stride, loaded.model.config.context)
    rows: list[tuple[Document, DocumentScore]] = []
    with Meter("documents", len(documents)) as meter:
        for document, result in zip(documents, score(loaded.model, pairs, stride, device), strict=True):
            rows.append((document, result))
            meter.update(len(rows))
    lines = ((d.id, sha256_text(d.text), s.bytes, s.tokens, repr(s.nats), QUANTITY) for d, s in rows)
    write_rows(evidence, LIKELIHOOD_COLUMNS, lines)
    return [result for _, result in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Held-out likelihood and samples of one model.")
    parser.add_argument("name", help="one of `models` in params.yaml")
    parser.add_argument("--checkpoint", type=Path, help="measure this checkpoint instead")
    parser.add_argument("--evidence", type=Path, help="and write its evidence into this folder")
    given = parser.parse_args()
    if (given.checkpoint is None) != (given.evidence is None):
        parser.error("--checkpoint and --evidence go together")
    main(lambda: evaluate_checkpoint(given.checkpoint, given.evidence) if given.checkpoint else evaluate(given.name))
