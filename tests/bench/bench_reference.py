"""What an hour of pretraining on two cores teaches: `make reference`, with folders of WikiText-2 and GLUE, and BLiMP.

A clone of this checkout becomes a project whose ``params.yaml`` has ``SETTINGS`` in it, and `plm run` does the rest:
the papers are pretrained on WikiText-2, the State of the Union addresses and two translations of the Bible (about 6
million words), asked for pairs of BLiMP and of their own held-out text, and fine-tuned on four tasks of GLUE with all
their labels. Beside them stand the same models without pretraining, from weights drawn anew and the same seeds, a
linear model on words, a 5-gram and a compressor. Tables with intervals are printed and written to
``artifacts/bench/reference.md``. Run again, it goes on where it was.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from texts import articles

from plm_core import checkpoint
from plm_core.corpus.document import Document, read_documents
from plm_core.evaluation.comparison import Compared, Estimate, compare
from plm_core.evaluation.evidence import LIKELIHOOD, read_likelihood
from plm_core.evaluation.ngram import ppmd_bits_after
from plm_core.shared.files import atomic_text
from plm_core.templates import aligned
from plm_core.training.size_presets import recipe_for

OUT = Path("artifacts/bench/reference.md")
PROJECT = Path("artifacts/bench/reference")
EVIDENCE, UNTRAINED = PROJECT / "artifacts/evidence", PROJECT / "artifacts/untrained"
PAIRS = 300
"""So many of each of BLiMP's 67 paradigms, and of each rule by which held-out text makes pairs."""
FOLDERS = {"sst2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE"}


def pretraining(layers: int, width: int, context: int, rate: float, steps: int, **model: int) -> dict[str, Any]:
    """What differs from the demo's model and training; a step reads 8,192 positions."""
    every = {"report_every": 50, "valid_every": 500, "snapshot_every": 500}
    optimizer = {"learning_rate": rate, "warmup_steps": 200}
    training = {"steps": steps, "batch": 8192 // context, "compile": True, "optimizer": optimizer, **every}
    return {"model": {"context": context, "layers": layers, "heads": 4, "width": width, **model}, "training": training}


SETTINGS: dict[str, Any] = {
    "models": dict.fromkeys(["llama", "modernbert", "gpt", "roberta", "xlnet"], "own"),
    "split": {"valid": 0.02, "test": 0.03},
    "pretrain": {
        "llama": recipe_for("60 core-minutes", "llama", "pretrain.llama"),
        "modernbert": pretraining(4, 192, 128, 4e-3, 3000),
        "gpt": pretraining(2, 256, 256, 8e-3, 1000),
        "roberta": pretraining(2, 256, 128, 3e-3, 3000),
        "xlnet": pretraining(2, 192, 128, 6e-3, 1000, memory=0),
    },
    "fewshot": {"tasks": []},  # the demo's are not among these
    "finetune": {
        "tasks": list(FOLDERS),
        "seeds": [1, 2],
        "train_examples": None,
        "heldout_examples": None,
        "training": {
            "epochs": 1,
            "validations": 2,
            "best_by": "score",
            "batch": 32,
            "warmup": 0.1,
            "optimizer": {"learning_rate": 5e-4, "layer_decay": 0.9},
        },
    },
}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """``old`` with the values of ``new`` in it, section by section."""
    both = {name: merged(old[name], new[name]) for name in old.keys() & new.keys() if isinstance(new[name], dict)}
    return old | new | both


def prepare(glue: Path, wikitext: Path, blimp: Path) -> None:
    """The clone with its parameters and its text."""
    if not PROJECT.exists():
        subprocess.run(["git", "clone", "--quiet", ".", str(PROJECT)], check=True)
    params = merged(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8")), SETTINGS)
    text = {"input": "wikitext/articles.jsonl", "license": "CC BY-SA 3.0", "id_field": "id"}
    params["sources"]["bible"] = {"reader": "bible", "input": "plm_core/corpus/sources/bible.json"}
    params["sources"]["wikitext"] = {"reader": "folder", **text}
    params["examples"] = {task: {"input": str((glue / folder).resolve())} for task, folder in FOLDERS.items()}
    params["pairs"]["blimp"] = {"input": str(blimp.resolve()), "per_paradigm": PAIRS}
    params["pairs"]["own-pairs"]["per_paradigm"] = PAIRS
    atomic_text(PROJECT / "params.yaml", yaml.safe_dump(params, sort_keys=False))
    lines = (json.dumps(article, ensure_ascii=False) for article in articles(wikitext))
    atomic_text(PROJECT / "wikitext/articles.jsonl", "\n".join(lines) + "\n")


def run(*arguments: str) -> None:
    """A command of the project, in it."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT.resolve()), "PLM_TRACKING": "off"}
    subprocess.run([sys.executable, "-m", *arguments], cwd=PROJECT, env=environment, check=True)


def write_untrained(model: str) -> None:
    """A checkpoint like that of the model, with weights drawn anew: as it was before its first step."""
    loaded = checkpoint.load(PROJECT / "artifacts/models" / model)
    torch.manual_seed(1)
    fresh = checkpoint.build(loaded.config.architecture, loaded.config.model, model)
    checkpoint.save(UNTRAINED / model, fresh.state_dict(), loaded.tokenizer, loaded.config)


def finetune_untrained(model: str, task: str) -> None:
    """The evidence of the model without pretraining, where it is not there yet."""
    evidence = PROJECT / "artifacts/untrained-evidence" / model
    if len(list(evidence.glob(f"{task}.*.csv"))) < len(SETTINGS["finetune"]["seeds"]):
        arguments = ["--checkpoint", str((UNTRAINED / model).resolve()), "--evidence", str(evidence.resolve())]
        run("tasks.stages.finetune", model, task, *arguments)


def likelihoods() -> Iterator[list[str]]:
    """Bits per byte of the held-out text of all sources, and of each: counted, and by each model."""
    train, test = (
        list(read_documents(PROJECT / f"artifacts/corpus/splits/{name}.parquet")) for name in ("train", "test")
    )
    sources = {"all": test}
    for document in test:
        sources.setdefault(document.source, []).append(document)
    yield ["", *(f"{name} ({len(some)} documents)" for name, some in sources.items())]
    read = joined(train)
    compressed = ((ppmd_bits_after(read, text), len(text)) for text in map(joined, sources.values()))
    yield ["PPMd, order 16", *(f"{bits / size:.3f}" for bits, size in compressed)]
    for name in ("ngram-own", *SETTINGS["models"]):
        measured = read_likelihood(EVIDENCE / name / LIKELIHOOD)
        places = {key: place for place, key in enumerate(measured.names)}
        chosen = (measured.results.take(np.array([places[d.id] for d in some])) for some in sources.values())
        yield [
            f"{name}, {measured.metric}",
            *(f"{part.nats.sum() / math.log(2) / part.bytes.sum():.3f}" for part in chosen),
        ]


def joined(documents: list[Document]) -> bytes:
    """One text of all."""
    return "\n".join(document.text for document in documents).encode()


def scores(models: list[str]) -> Iterator[list[str]]:
    """What each model scores, and gains over itself without pretraining and over words; of pairs, over the 5-gram."""
    yield ["model", "task", "score", "pretrained", "untrained", "gain", "p", "words, 5-gram", "gain", "p"]
    for model in models:
        sides = (PROJECT / "artifacts/untrained-evidence" / model, EVIDENCE / "tfidf", EVIDENCE / "ngram-own")
        before, words, counted = (compare((side, EVIDENCE / model), ("other", model)) for side in sides)
        pairs = zip([*before.tasks, before.averages[0]], [*words.tasks, words.averages[0]], strict=True)
        yield from (
            [model, untrained.name, untrained.score, shown(untrained.second), *gain(untrained), *gain(by_words)]
            for untrained, by_words in pairs
        )
        sets = [row for row in counted.tasks if row.holm is not None]  # without their paradigms
        yield from ([model, row.name, row.score, shown(row.second), "0.5", "", "", *gain(row)] for row in sets)


def gain(compared: Compared) -> list[str]:
    """What the other one scores and the model gains over it; p is Holm's for a task; ** marks what chance is not."""
    p = compared.p if compared.holm is None else compared.holm
    return [shown(compared.first), shown(compared.difference, "+"), f"{p:.4f}" + (" **" if compared.better else "")]


def shown(estimate: Estimate, sign: str = "") -> str:
    """A number and its interval."""
    low, high = estimate.interval.low, estimate.interval.high
    return f"{estimate.value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def table(lines: Iterator[list[str]]) -> str:
    """A table in Markdown."""
    head, *rest = lines
    return aligned("\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rest)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What an hour of pretraining on two cores teaches.")
    parser.add_argument("--glue", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--wikitext", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--blimp", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    names = list(SETTINGS["models"])
    prepare(given.glue, given.wikitext, given.blimp)
    run("flows.cli", "run")
    for name in names:
        write_untrained(name)
    with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        list(side_by_side.map(lambda job: finetune_untrained(*job), product(names, FOLDERS)))
    text = f"{table(likelihoods())}\n{table(scores(names))}"
    atomic_text(OUT, text)
    print(text)
