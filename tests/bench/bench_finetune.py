"""Fine-tuning beside transformers' Trainer on the same machine, task, model and weights: examples a second.
`make bench-finetune GLUE=FOLDER`, where FOLDER/SST-2 holds the official train.tsv and dev.tsv.

Ours is what stage finetune does with `compile: true` and `precision: bfloat16`: batches of like length. The peer is the
Trainer as its examples use it: batches at random, padded to their longest row by DataCollatorWithPadding, in its
default precision, float32, and in its bfloat16 mode. Each side is a process and they take turns. First turns are not
counted. Both read random batches, so what a turn reads differs: the accuracy on dev.tsv behind the last turn is printed
for both. Rows go to ``artifacts/bench/finetune.json``.
"""

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_train import Watch, row, take_turns, write_rows
from peers import NAME, SameTrainer, same_weights, train_by

from plm_core.benchmarks.example_readers import file_rows
from plm_core.finetuning.classifier import Classifier, collate, example_loss, predict
from plm_core.finetuning.featurize import Batching, InputRow
from plm_core.finetuning.finetune_config import Recipe
from plm_core.finetuning.input_formats import encode_parts, free_positions, input_format_of
from plm_core.models.bert import BERT, BERTConfig
from plm_core.text.samplers import stream_seed
from plm_core.text.tokenizer_kinds import read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import PAD, TokenizerConfig
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots

OUT = Path("artifacts/bench/finetune.json")
SHAPE = {"context": 128, "layers": 4, "heads": 4, "width": 256, "dropout": 0.0}
VOCABULARY, STEPS_A_TURN, TURNS, WARM = 8192, 40, 5, 1
RECIPE = Recipe(
    epochs=1, batch=32, optimizer=OptimizerConfig(5e-4), precision="bfloat16", compile=True, report_every=STEPS_A_TURN
)  # fmt: skip
BAR = 2.0


@dataclass(frozen=True)
class Job:
    """What each side trains."""

    folder: Path
    """train.tsv and dev.tsv."""
    tokenizer: Path
    steps: int
    turn: int
    busy: bool


def read(folder: Path, name: str) -> list[tuple[str, int]]:
    """The sentences and classes of a split."""
    return [(row["sentence"], int(row["label"])) for _, row in file_rows(folder / f"{name}.tsv")]


def side(link: Connection, job: Job, name: str) -> None:
    """A process: trains as ``name`` says, ours or the peer in a precision; a turn for each message that it gets."""
    device, watch = prepare(threads=1 if job.busy else None), Watch(link, job.busy)
    tokenizer = read_tokenizer(job.tokenizer, job.tokenizer.read_bytes())
    layout = input_format_of("masked")
    most = free_positions(layout.single, SHAPE["context"])
    data = {
        split: [
            InputRow([encode_parts(layout.single, {"a": tokenizer.encode(text)[:most]})], label)
            for text, label in read(job.folder, split)
        ]
        for split in ("train", "dev")
    }
    torch.manual_seed(1)
    backbone = BERT(BERTConfig(vocab_size=tokenizer.vocab_size, **SHAPE))
    model = Classifier(backbone, layout, "classification", 2, 0.0)
    batching = Batching([r.longest for r in data["train"]], RECIPE.batch, stream_seed(1, "order"))
    loop = RECIPE.loop(job.steps, 1)
    labels = [r.label for r in data["dev"]]

    if name == "ours":
        with tempfile.TemporaryDirectory() as folder:
            reports = train(
                model,
                example_loss,
                lambda step: collate([data["train"][i] for i in batching.at(step)], SHAPE["context"]),
                lambda _: Validation(1.0),
                loop,
                device,
                Snapshots(Path(folder)),
            )
            for turn in range(job.steps // job.turn):
                watch.begin()
                loss = next(reports).loss
                last = turn == job.steps // job.turn - 1
                watch.end(loss, accuracy(classes(model, data["dev"], device.device), labels) if last else None)
            list(reports)
        return
    torch.use_deterministic_algorithms(False)
    theirs = peer_of(backbone, model)
    left = job.steps // job.turn

    def behind(theirs: Any, losses: list[torch.Tensor]) -> None:
        nonlocal left
        left -= 1
        valid = watch.aside(lambda: accuracy(answers(theirs, data["dev"]), labels)) if not left else None
        watch.end(float(torch.stack(losses).mean()), valid)

    features = [{"input_ids": r.sequences[0].ids, "labels": r.label} for r in data["train"]]
    given = {"train_dataset": features, "data_collator": padded}
    train_by(SameTrainer, theirs, given, loop, name == "bfloat16", watch.begin, behind)


def classes(model: Classifier, rows: list[InputRow], device: torch.device) -> list[int]:
    """The likeliest class of each row."""
    return torch.tensor(predict(model, rows, 32, device).answers).argmax(-1).tolist()


def padded(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What DataCollatorWithPadding makes of them, which wants a tokenizer of transformers."""
    longest = max(len(f["input_ids"]) for f in features)
    rows = [f["input_ids"] + [PAD] * (longest - len(f["input_ids"])) for f in features]
    keep = [[1] * len(f["input_ids"]) + [0] * (longest - len(f["input_ids"])) for f in features]
    columns = {"input_ids": rows, "attention_mask": keep, "labels": [f["labels"] for f in features]}
    return {name: torch.tensor(values) for name, values in columns.items()}


def peer_of(backbone: BERT, model: Classifier) -> Any:
    """BertForSequenceClassification with the same weights, without dropout."""
    theirs = same_weights("bert", backbone, transformers.BertForSequenceClassification)
    with torch.no_grad():
        theirs.classifier.weight.copy_(model.head[-1].weight)
        theirs.classifier.bias.copy_(model.head[-1].bias)
    return theirs


@torch.no_grad()
def answers(model: Any, rows: list[InputRow]) -> list[float]:
    """The classes that the peer's model gives."""
    model.eval()
    logits = [
        model(**padded([{"input_ids": r.sequences[0].ids, "labels": int(r.label)} for r in rows[i : i + 32]])).logits
        for i in range(0, len(rows), 32)
    ]
    model.train()
    return torch.cat(logits).argmax(-1).tolist()


def accuracy(predictions: list[float], labels: list[float]) -> float:
    return sum(a == b for a, b in zip(predictions, labels, strict=True)) / len(labels)


def bench(folder: Path, turns: int, busy: bool) -> None:
    """Print the line of speeds and write its rows."""
    texts = [text for text, _ in read(folder, "train")]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "tokenizer.model"
        path.write_bytes(train_tokenizer(texts, TokenizerConfig("bpe", VOCABULARY)))
        job = Job(folder, path, STEPS_A_TURN * (turns + WARM), STEPS_A_TURN, busy)
        by_side = take_turns(side, {name: (job, name) for name in ("float32", "bfloat16", "ours")})
    examples = STEPS_A_TURN * RECIPE.batch
    speed = {
        name: statistics.median(examples / turn.seconds for turn in timed[WARM:]) for name, timed in by_side.items()
    }
    print(f"SST-2, BERT {SHAPE}, batch {RECIPE.batch}; examples/s, medians of {turns} turns of {STEPS_A_TURN} steps")
    for name, timed in by_side.items():
        ratio = "" if name == "ours" else f"; ours is {speed['ours'] / speed[name]:.2f} times as fast"
        print(f"{name:<10}{speed[name]:>8,.0f}   loss {timed[-1].loss:.3f}, accuracy {timed[-1].valid:.3f}{ratio}")
    print(f"the bar is {BAR} against the Trainer's default, float32")
    works = {"sst2-bert-cpu": "float32", "sst2-bert-cpu-bf16": "bfloat16"}
    peer = f"{NAME}, BertForSequenceClassification"
    rows = [
        row(work, "examples/s", speed["ours"], speed[name], f"{peer}, {name}", speed["ours"] / speed[name])
        for work, name in works.items()
    ]
    write_rows(rows, OUT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fine-tuning beside transformers' Trainer.")
    parser.add_argument("--sst2", type=Path, required=True, help="the folder of train.tsv and dev.tsv")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--busy", action="store_true", help="one thread, processor time: for a machine that is shared")
    given = parser.parse_args()
    if not (given.sst2 / "train.tsv").is_file():
        parser.error(
            f"{given.sst2}: holds no train.tsv; expected SST-2 of the official GLUE download (make: GLUE=FOLDER)"
        )
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path("artifacts/compiled").resolve()))
    bench(given.sst2, given.turns, given.busy)
