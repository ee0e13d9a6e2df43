"""What pretraining gives on real tasks. `make bench-glue GLUE=FOLDER WIKITEXT=FOLDER`; some hours on two cores.

GLUE holds SST-2, CoLA, MRPC and RTE as they are downloaded, WIKITEXT train.txt, valid.txt and test.txt of WikiText-2. A
clone of this checkout becomes a project whose ``params.yaml`` has ``SETTINGS`` in it, and `dvc repro` does the rest:
GPT, BERT and XLNet are pretrained on WikiText-2 and the State of the Union addresses for about ten minutes each and
fine-tuned from three seeds. Beside each stands the same model without pretraining, from weights drawn anew and the
same seeds, and the linear model on words. Scores, intervals and who is better are printed and written to
``artifacts/bench/glue.md``. Run again, it goes on where it was.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

from plm_core import checkpoint
from plm_core.evaluation.comparison import Compared, Estimate, compare
from plm_core.files import atomic_text
from plm_core.templates import aligned

OUT = Path("artifacts/bench/glue.md")
PROJECT = Path("artifacts/bench/glue")
FOLDERS = {"sst2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE"}
ARTICLE = re.compile(r"^ (?== [^=].* = $)", re.MULTILINE)
"""WikiText's articles begin with a line ``= Title =``; headings in them have more signs."""


def pretraining(steps: int, batch: int) -> dict[str, Any]:
    """What differs from the demo's training."""
    optimizer = {"name": "muon", "learning_rate": 3e-3, "warmup_steps": 300}
    every = {"report_every": 50, "valid_every": 500, "snapshot_every": 500}
    return {"steps": steps, "batch": batch, "compile": True, "optimizer": optimizer, **every}


SIZES = {"context": 128, "layers": 4, "heads": 4, "width": 128}
"""1.9 million parameters: of what two cores can do in ten minutes, wider models see too little text."""
SETTINGS: dict[str, Any] = {
    "clean": {"documents": {"alphabetic_word_share": {"min": 0.6}}},  # WikiText's signs are words of their own
    "split": {"valid": 0.02, "test": 0.02},
    "tokenizer": {"kind": "wordpiece", "vocab_size": 8192, "lowercase": True},  # SST-2 and MRPC are in lower case
    "pretrain": {
        "gpt": {"model": SIZES, "training": pretraining(5500, 16)},
        # More masks, for a small model learns little from 15 % of few tokens (compare Wettig et al. 2023), and shorter
        # rows: the loss stays near that of single words until a place has learned to look at those beside it, which
        # took 300 steps with rows of 32 tokens, 2,000 with 64, and with 128 more than ten minutes have.
        "bert": {
            "objective": {"name": "masked", "next_sentence": False, "rate": 0.4},
            "model": SIZES | {"context": 64},
            "training": pretraining(6000, 32),
        },
        "xlnet": {
            "objective": {"name": "permutation", "predict": 2},  # half of a row: of a sixth it learns less in the time
            "model": SIZES | {"context": 64},
            "training": pretraining(3600, 32),
        },
    },
    "fewshot": {"tasks": []},  # the demo's are not among these
    "finetune": {
        "tasks": list(FOLDERS),
        "seeds": [1, 2, 3],
        "train_examples": 2000,
        "heldout_examples": None,
        "training": {
            "epochs": 4,
            "validations": 2,
            "batch": 32,
            "warmup": 0.1,
            "optimizer": {"learning_rate": 5e-4, "weight_decay": 0.01, "layer_decay": 0.9},
        },
    },
}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """``old`` with the values of ``new`` in it, section by section."""
    both = {name: merged(old[name], new[name]) for name in old.keys() & new.keys() if isinstance(new[name], dict)}
    return old | new | both


def articles(folder: Path) -> Iterator[dict[str, str]]:
    """WikiText-2 as one record an article."""
    for part in ("train", "valid", "test"):
        text = (folder / f"{part}.txt").read_text(encoding="utf-8")
        for i, article in enumerate(ARTICLE.split(text)):
            if article.strip():
                yield {"id": f"{part}-{i}", "text": article.strip()}


def prepare(glue: Path, wikitext: Path) -> None:
    """The clone with its parameters and its text."""
    if not PROJECT.exists():
        subprocess.run(["git", "clone", "--quiet", ".", str(PROJECT)], check=True)
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    params = merged(params, SETTINGS)
    params["sources"]["wikitext"] = {
        "reader": "folder",
        "input": "wikitext/articles.jsonl",
        "license": "CC BY-SA 3.0",
        "id_field": "id",
    }
    params["examples"] = {task: {"input": str((glue / folder).resolve())} for task, folder in FOLDERS.items()}
    atomic_text(PROJECT / "params.yaml", yaml.safe_dump(params, sort_keys=False))
    lines = (json.dumps(article, ensure_ascii=False) for article in articles(wikitext))
    atomic_text(PROJECT / "wikitext/articles.jsonl", "\n".join(lines) + "\n")


def run(*arguments: str) -> None:
    """A command of the project, in it."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT.resolve()), "PLM_TRACKING": "off"}
    subprocess.run([sys.executable, "-m", *arguments], cwd=PROJECT, env=environment, check=True)


def untrained(model: str) -> Path:
    """A checkpoint like that of the model, with weights drawn anew: as it was before its first step."""
    folder = PROJECT / "artifacts/untrained" / model
    if not folder.exists():
        loaded = checkpoint.load(PROJECT / "artifacts/models" / model)
        torch.manual_seed(1)
        fresh = checkpoint.build(loaded.config.architecture, loaded.config.model, model)
        checkpoint.save(folder, fresh.state_dict(), loaded.tokenizer, loaded.config)
    return folder.resolve()


def finetune_untrained(model: str) -> None:
    """The evidence of the model without pretraining, where it is not there yet."""
    evidence = PROJECT / "artifacts/untrained-evidence" / model
    for task in FOLDERS:
        if len(list(evidence.glob(f"{task}.*.csv"))) < len(SETTINGS["finetune"]["seeds"]):
            arguments = ["--checkpoint", str(untrained(model)), "--evidence", str(evidence.resolve())]
            run("tasks.finetune", model, task, *arguments)


def page(models: list[str]) -> str:
    """For each model a table of scores: its own, without pretraining, of words; and what it gains over either."""
    parts = []
    for model in models:
        evidence = PROJECT / "artifacts/evidence"
        before = compare((PROJECT / "artifacts/untrained-evidence" / model, evidence / model), ("untrained", model))
        words = compare((evidence / "tfidf", evidence / model), ("words", model))
        pairs = zip([*before.tasks, before.averages[0]], [*words.tasks, words.averages[0]], strict=True)
        heads = ["task", "score", "pretrained", "untrained", "gain", "p", "words", "gain", "p"]
        lines = [heads, ["---"] * len(heads), *(cells(one, two) for one, two in pairs)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {model}\n\n{aligned(table)}")
    return "\n".join(parts)


def cells(before: Compared, words: Compared) -> list[str]:
    """A row: p is Holm's for a task; ** marks a difference beyond chance."""
    row = [before.name, before.score, told(before.second)]
    for found in (before, words):
        p = found.p if found.holm is None else found.holm
        row += [told(found.first), told(found.difference, "+"), f"{p:.4f}" + (" **" if found.better else "")]
    return row


def told(estimate: Estimate, sign: str = "") -> str:
    """A number and its interval."""
    low, high = estimate.interval.low, estimate.interval.high
    return f"{estimate.value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What pretraining gives on real tasks.")
    parser.add_argument("--glue", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--wikitext", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args()
    names = list(SETTINGS["pretrain"])
    prepare(given.glue, given.wikitext)
    run("dvc", "repro", "--quiet", "report")
    for name in names:
        finetune_untrained(name)
    text = page(names)
    atomic_text(OUT, text)
    print(text)
