"""Stage evaluate: held-out likelihood and samples of one model. `python -m tasks.stages.evaluate <name>`.

With `--checkpoint` and `--evidence` another checkpoint is measured on the current test split, and only its evidence is
written: that is how the gate compares a champion with a challenger on the same examples.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from plm_core.checkpoint import Loaded, load
from plm_core.config import UserError
from plm_core.configs.stage_configs import BLANK, EvaluateConfig
from plm_core.corpus.document import read_documents
from plm_core.evaluation.evidence import COST, COST_COLUMNS, LIKELIHOOD, LIKELIHOOD_COLUMNS, PARAMETERS, UNKNOWN
from plm_core.evaluation.likelihood import in_evidence, named, scorer_of
from plm_core.evaluation.likelihood.document_scores import Likelihood, sum_scores, tokenized
from plm_core.evaluation.samples import copied_shares, distinct, filler_of, repetition_share
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.evaluation.train_overlap import NGRAM, search_in
from plm_core.generation import generate
from plm_core.objectives import OBJECTIVES
from plm_core.objectives.objective import Quantity
from plm_core.shared import paths
from plm_core.shared.files import atomic_text, sha256_text
from plm_core.text.vocabulary_quality import unknown_rate
from plm_core.training.device import Device, prepare
from tasks.parameters import stage_parameters
from tasks.runtime.stage import Progress, main, stage
from tasks.runtime.worker_pool import pool

PROMPTS, WORDS, LONGEST = 3, 5, 40
"""If no prompts are given: how many documents provide one, and its most words and characters."""
TEST, TRAIN = paths.CORPUS / "test.parquet", paths.CORPUS / "train.parquet"


def evaluate(name: str, checkpoint: Path | None = None, evidence: Path | None = None) -> None:
    """Measure NAME, one of ``models`` in params.yaml; or a checkpoint instead, and write its evidence into a folder."""
    config = stage_parameters.section("evaluate", EvaluateConfig)
    if checkpoint and evidence:
        device = prepare(threads=1)
        _measure(load(checkpoint, device.device), config, device, evidence)
        return
    if checkpoint or evidence:
        raise UserError("expected --checkpoint and --evidence together")
    folder = paths.MODELS / name
    with (
        stage(f"evaluate-{name}", ["evaluate"], [folder, TEST, TRAIN], model=name) as run,
        pool(run) as workers,
    ):
        device = prepare(threads=1)
        loaded = load(folder, device.device)
        evidence = paths.EVIDENCE / name
        samples = paths.SAMPLES / f"{name}.json"
        objective = OBJECTIVES[loaded.config.objective]
        tokenizer = loaded.tokenizer
        main_quantity = named(objective.likelihood.name, tokenizer)
        if not loaded.config.predicts:
            run.metrics["bytes"] = sum_scores(_measure(loaded, config, device, evidence)).bytes
            atomic_text(samples, "[]\n")
            run.outputs += [evidence / LIKELIHOOD, evidence / COST, samples]
            print(f"{name}: its likelihood is not known, because it was published without a head that predicts words")
            return
        # The samples come first, because one of their texts may be refused.
        sampled = _samples(loaded, config, device)
        result = sum_scores(_measure(loaded, config, device, evidence))
        run.metrics[main_quantity] = result.bits_per_byte
        texts = [document.text for document in read_documents(TEST)]
        for quantity in objective.beside:
            if rows := _score(quantity, loaded, texts, config, device, quantity.name):
                run.metrics[named(quantity.name, tokenizer)] = sum_scores(rows).bits_per_byte
        if objective.perplexity:
            run.metrics |= {"nats_per_token": result.nats_per_token, "perplexity": result.perplexity}
        run.metrics |= {"tokens": result.tokens, "bytes": result.bytes}
        if not tokenizer.lossless:
            run.metrics["unknown_rate"] = unknown_rate(tokenizer.encode_batch(texts))
        written = [sample["continuation"] for sample in sampled if "continuation" in sample]
        share, longest = copied_shares(written, search_in(TRAIN, workers))
        measures = {"distinct_1": distinct(written, 1), "distinct_2": distinct(written, 2)}
        measures |= {"repeated_4": repetition_share(written, 4), f"copied_{NGRAM}": share}
        # Measures for which the texts are too short are left out.
        run.metrics |= {name: value for name, value in measures.items() if math.isfinite(value)}
        run.metrics |= {"longest_copy": longest} if written else {}
        atomic_text(samples, json.dumps(sampled, indent=2, ensure_ascii=False) + "\n")
        run.outputs += [evidence / LIKELIHOOD, evidence / COST, samples]
        print(f"{name}: {result.bits_per_byte:.4f} {main_quantity} of {result.bytes:,} bytes")


def _measure(loaded: Loaded, config: EvaluateConfig, device: Device, evidence: Path) -> list[Likelihood]:
    """The scores by which models of this objective are compared; they and the model's cost are written as evidence."""
    likelihood = OBJECTIVES[loaded.config.objective].likelihood
    documents = list(read_documents(TEST))
    if loaded.config.predicts:
        scores = _score(likelihood, loaded, [d.text for d in documents], config, device, "documents")
        quantity = in_evidence(likelihood.name, loaded.tokenizer)
    else:
        scores = [Likelihood(math.nan, 0, len(d.text.encode())) for d in documents]
        quantity = UNKNOWN
    rows = zip(documents, scores, strict=True)
    rule = config.measured
    lines = ((d.id, sha256_text(d.text), s.bytes, s.tokens, repr(s.nats), quantity, rule) for d, s in rows)
    write_sealed(evidence / LIKELIHOOD, LIKELIHOOD_COLUMNS, lines)
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    write_sealed(evidence / COST, COST_COLUMNS, [(PARAMETERS, size)])
    return scores


def _score(
    quantity: Quantity,
    loaded: Loaded,
    texts: Sequence[str],
    config: EvaluateConfig,
    device: Device,
    what: str,
) -> list[Likelihood]:
    read = (tokenized(text, loaded.tokenizer) for text in texts)
    return list(Progress(what, len(texts)).counted(scorer_of(quantity)(loaded.model, read, config, device)))


def _samples(loaded: Loaded, config: EvaluateConfig, device: Device) -> list[dict[str, Any]]:
    """Continuations, or fills by a model that does not continue text; each prompt has its own seed, because otherwise
    all continuations would be alike.

    Raises:
        UserError: a text of ``cloze`` is longer than the model's context.
    """
    first = islice(read_documents(TEST), PROMPTS)
    beginnings = [" ".join(document.text.split()[:WORDS])[:LONGEST] for document in first]
    if (fill := filler_of(loaded.config.objective)) is None:
        prompts = beginnings if config.prompts is None else config.prompts
        seeds = [replace(config.sampling, seed=config.sampling.seed + draw) for draw in range(len(prompts))]
        pairs = zip(prompts, seeds, strict=True)
        return [{"prompt": prompt, "continuation": generate(loaded, prompt, own)} for prompt, own in pairs]
    texts = config.cloze
    if texts is None:
        texts = [f"{text} {BLANK}" for text in beginnings if BLANK not in text]
    try:
        return [{"cloze": text, "fills": fill(loaded.model, loaded.tokenizer, text, device)} for text in texts]
    except ValueError as error:
        raise UserError(f"evaluate.{error}") from error


if __name__ == "__main__":
    main(evaluate, gpus=1)
