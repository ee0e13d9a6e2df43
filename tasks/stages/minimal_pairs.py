"""Stage minimal-pairs: which text of each pair a model prefers.

`python -m tasks.stages.minimal_pairs <model> <set>`

With `--checkpoint` and `--evidence` another checkpoint is scored, and only its evidence is written, for the gate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from plm_core import checkpoint as checkpoints
from plm_core.benchmarks.pair_sets import Pair, load_pairs
from plm_core.config import UserError
from plm_core.configs.stage_configs import EvaluateConfig, LikelihoodConfig
from plm_core.evaluation import significance
from plm_core.evaluation.evidence import TASK_COLUMNS, has_no_rows, read_task
from plm_core.evaluation.example_counts import TIE
from plm_core.evaluation.likelihood import scorer_of
from plm_core.evaluation.likelihood.document_scores import tokenized
from plm_core.evaluation.pair_scoring import file_of, pair_rows
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.objectives import OBJECTIVES
from plm_core.shared import paths
from plm_core.training.device import Device, prepare
from tasks.parameters import stage_parameters
from tasks.runtime.stage import Progress, main, stage


def minimal_pairs(model: str, name: str, checkpoint: Path | None = None, evidence: Path | None = None) -> None:
    """Score the set NAME of ``pairs`` with MODEL, one of ``models`` in params.yaml, or with another checkpoint."""
    config = stage_parameters.section("evaluate", EvaluateConfig)
    if checkpoint and evidence:
        write_evidence(checkpoint, name, evidence, config)
        return
    if checkpoint or evidence:
        raise UserError("expected --checkpoint and --evidence together")
    folder = paths.MODELS / model
    inputs = [folder, paths.PAIRS / f"{name}.jsonl"]
    with stage(f"minimal-pairs-{model}-{name}", ["evaluate"], inputs, model=model) as run:
        file = write_evidence(folder, name, paths.EVIDENCE / model, config)
        run.outputs.append(file)
        if has_no_rows(file):
            print(f"{model}: {name}: not asked, because the model was published without a head that predicts words")
            return
        table = read_task([file])
        interval = significance.interval_of(table.results)
        run.metrics |= {"score": table.value, "score_low": interval.low, "score_high": interval.high}
        run.metrics |= {"pairs": len(table.examples), "ties": table.predictions[0].count(TIE)}
        summary = f"{table.value:.3f} [{interval.low:.3f}, {interval.high:.3f}] of {len(table.examples):,} pairs"
        print(f"{model}: {name}: {summary}; chance: 0.5")


def write_evidence(folder: Path, name: str, evidence: Path, config: LikelihoodConfig) -> Path:
    """Score the pairs with a checkpoint; return the file of its evidence."""
    device = prepare(threads=1)
    loaded = checkpoints.load(folder, device.device)
    pairs = load_pairs(paths.PAIRS / f"{name}.jsonl")
    file = evidence / file_of(name)
    if loaded.config.predicts:
        nats = list(Progress(name, len(pairs)).counted(nats_of(loaded, pairs, config, device)))
        write_sealed(file, TASK_COLUMNS, pair_rows(pairs, nats, config))
    else:
        write_sealed(file, TASK_COLUMNS, [])
    return file


def nats_of(
    loaded: checkpoints.Loaded, pairs: Sequence[Pair], config: LikelihoodConfig, device: Device
) -> Iterator[tuple[float, float]]:
    """-log p, in nats, of the whole good and the whole bad text of each pair, in order.

    No end of document follows a text, because it is a passage.
    """
    score = scorer_of(OBJECTIVES[loaded.config.objective].likelihood)
    texts = (
        replace(tokenized(text, loaded.tokenizer), ended=False) for pair in pairs for text in (pair.good, pair.bad)
    )
    nats = (likelihood.nats for likelihood in score(loaded.model, texts, replace(config, excerpt=None), device))
    return zip(nats, nats, strict=True)


if __name__ == "__main__":
    main(minimal_pairs, gpus=1)
