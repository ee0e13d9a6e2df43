"""What the demo's recipe learns beside transformers' scripts, from the same text in the same time. `make bench-recipe`.

Ours is the training of ``params.yaml`` (sections ``gpt`` and ``bert``), with its steps, its optimizer and its initial
weights; BERT without next-sentence prediction, which ``run_mlm`` does not have. The peer is what ``run_clm`` and
``run_mlm`` train when a model is trained from scratch: transformers' model of the same shape, with the dropout and the
initial weights that it comes with, by the Trainer with AdamW and a rate that falls linearly, 15 % of the tokens masked.
It gets as much time as ours took, on the same cores, and several learning rates: the scripts' own, 5e-5, and larger
ones. It is compared at the best of them.

Both read the State of the Union addresses in the same batches of tokens, and are measured on every twentieth of them,
which neither has read: nats a token, or a masked token of 15 %. Rows go to ``artifacts/bench/recipe.json``.

With ``--size`` ours is the recipe of that time for any architecture, and with ``--wikitext FOLDER`` both read the
articles of WikiText-2 and two translations of the Bible too, and are measured on every twentieth article as well. That
is how the recipes were measured: ``--set training.batch=16 model.width=192 ...`` tries another, ``--rates`` without a
number leaves the peer out.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import transformers
import yaml
from bench_train import row, write_rows, write_stores
from peers import NAME, PEERS, Steps
from texts import texts_of
from torch.utils.data import DataLoader

from plm_core.config import from_dict
from plm_core.configs.architectures import MODELS
from plm_core.objectives import build_objective
from plm_core.objectives.masked import Masked
from plm_core.objectives.objective import Objective
from plm_core.text.cooccurrence import begin_with_neighbours
from plm_core.text.samplers import stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizers import EOS
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.size_presets import fill_in_size
from plm_core.training.snapshot import Snapshots
from plm_core.training.step import Evaluate
from tasks.parameters import stage_parameters
from tasks.parameters.pretrain_config import PretrainConfig

OUT = Path("artifacts/bench/recipe.json")
HELD_OUT_TOKENS = 2**15
"""So many tokens of the documents that are held out are measured on."""
DEFAULT = 5e-5
"""The Trainer's learning rate, and so the scripts'."""
RATES = (DEFAULT, 1e-3, 2e-3, 4e-3)
WARM = 20
"""Steps by which the peer's speed is measured."""
VOCABULARY = stage_parameters.read("tokenizers.own.vocab_size")


@dataclass(frozen=True)
class Script:
    """What a script of transformers trains from scratch, and ours beside it."""

    config: Callable[[Any], Any]
    """Their configuration of the shape of ours; all else is as it comes."""
    model: Any


SCRIPTS = {
    "gpt": Script(
        lambda c: transformers.GPT2Config(
            vocab_size=c.vocab_size,
            n_positions=c.context,
            n_embd=c.width,
            n_layer=c.layers,
            n_head=c.heads,
            bos_token_id=EOS,
            eos_token_id=EOS,
        ),
        transformers.GPT2LMHeadModel,
    ),
    "bert": Script(
        lambda c: transformers.BertConfig(
            vocab_size=c.vocab_size,
            max_position_embeddings=c.context,
            hidden_size=c.width,
            intermediate_size=4 * c.width,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
        ),
        transformers.BertForMaskedLM,
    ),
}


@dataclass(frozen=True)
class Job:
    """One training."""

    paper: str
    section: PretrainConfig
    """Our training."""
    store: Path
    """A folder with the stores train and valid."""
    seed: int
    threads: int | None
    rate: float | None = None
    """The peer's learning rate; None for ours."""
    seconds: float = 0.0
    """What the peer may take."""


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    loss: float
    seconds: float
    """Of the processor with one thread, else of the clock; without validation."""
    steps: int


def trained(job: Job) -> Trained:
    """Train in a process of its own, so that nobody inherits another's settings."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(ours if job.rate is None else peer, (job,))


class Setting:
    """What both have in common."""

    def __init__(self, job: Job) -> None:
        section = job.section
        without = {name: value for name, value in section.objective.items() if name != "next_sentence"}
        self.ours = build_objective(without, f"pretrain.{job.paper}.objective")
        self.theirs: Objective = Masked(rate=0.15) if isinstance(self.ours, Masked) else self.ours
        """The script's objective, by which both are measured."""
        self.device = prepare(threads=job.threads)
        self.clock = process_time if job.threads else perf_counter
        self.entry = MODELS[section.architecture]
        self.config = self.entry.config(**section.model, vocab_size=VOCABULARY)
        steps = section.training.steps
        self.loop = replace(section.training, seed=job.seed, valid_every=steps, snapshot_every=steps)
        self.stores = {name: TokenStore(job.store / name) for name in ("train", "valid")}
        unseen = self.theirs.batches(self.stores["valid"], self.config, self.loop.batch)
        self.held_out = unseen.held_out(HELD_OUT_TOKENS // self.config.context)

    def batch_at(self, objective: Objective) -> Callable[[int], Any]:
        """The batch of each step."""
        batches = objective.batches(self.stores["train"], self.config, self.loop.batch)
        return lambda step: batches.at(self.loop.order_seed, step)


def ours(job: Job) -> Trained:
    """As the stage pretrain does it."""
    setting = Setting(job)
    start, aside = setting.clock(), 0.0
    torch.manual_seed(stream_seed(job.seed, "weights"))
    model = setting.entry.model(setting.config)
    if model.config.initial_embeddings == "neighbours":
        begin_with_neighbours(model.tokens.weight, setting.stores["train"], model.config.initializer_range)
    model.to(setting.device.device)

    def validate(evaluate: Evaluate) -> Validation:
        nonlocal aside
        begun = setting.clock()
        losses, carry = [], None
        for batch in setting.held_out:
            losses.append(evaluate(batch.to(setting.device.device), carry))
            carry = losses[-1].carry
        aside += setting.clock() - begun
        return Validation(float(sum(loss.nll for loss in losses) / sum(loss.num_targets for loss in losses)))

    with tempfile.TemporaryDirectory() as folder:
        snapshots = Snapshots(Path(folder))
        batch_at = setting.batch_at(setting.ours)
        *_, last = train(model, setting.ours.loss, batch_at, validate, setting.loop, setting.device, snapshots)
    return Trained(last.valid_loss, setting.clock() - start - aside, setting.loop.steps)


class Fresh(transformers.Trainer):
    """The Trainer as the scripts use it, given whole batches."""

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)


def peer(job: Job) -> Trained:
    """As the script does it, for as long as ours took: some steps to see how fast it is, then the training."""
    setting = Setting(job)
    # The determinism that our loop asks for is none of the Trainer's defaults.
    torch.use_deterministic_algorithms(False)
    batch_at = setting.batch_at(setting.theirs)
    run_for(setting, job, batch_at, 3)
    steps = round(job.seconds / run_for(setting, job, batch_at, WARM)[1] * WARM)
    model, seconds = run_for(setting, job, batch_at, steps)
    model.eval()
    with torch.no_grad():
        losses = [float(model(**arguments(job.paper, batch)).loss) for batch in setting.held_out]
    counts = [int(batch.num_targets) for batch in setting.held_out]
    loss = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    return Trained(loss, seconds, steps)


def run_for(setting: Setting, job: Job, batch_at: Callable[[int], Any], steps: int) -> tuple[Any, float]:
    """A training of so many steps, and the seconds that it took."""
    torch.manual_seed(job.seed)
    script = SCRIPTS[job.paper]
    model = script.model(script.config(setting.config))
    with tempfile.TemporaryDirectory() as folder:
        given = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=setting.loop.batch,
            learning_rate=job.rate,
            use_cpu=setting.device.device.type == "cpu",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data = Steps(batch_at, lambda batch: arguments(job.paper, batch), steps)
        trainer = Fresh(model, given, train_dataset=data)
        trainer.remove_callback(transformers.PrinterCallback)
        start = setting.clock()
        trainer.train()
    return model, setting.clock() - start


def arguments(paper: str, batch: Any) -> dict[str, Any]:
    """A batch as the script's model takes it."""
    inputs = PEERS[paper][2](batch)
    inputs.pop("next_sentence_label", None)
    return inputs


def compared(job: Job, rates: Sequence[float], seeds: int) -> list[dict[str, Any]]:
    """Train both; print each, and give the rows of the file: beside the best rate, and beside the scripts' own."""
    paper = job.paper
    ours = [trained(replace(job, seed=seed)) for seed in range(1, seeds + 1)]
    report(paper, "ours", ours)
    if not rates:
        return []
    theirs = replace(job, seconds=statistics.mean(run.seconds for run in ours))
    first = {rate: trained(replace(theirs, rate=rate)) for rate in rates}
    for rate, run in first.items():
        report(paper, f"{rate:g}", [run])
    best = min(first, key=lambda rate: first[rate].loss)
    others = [first[best], *(trained(replace(theirs, rate=best, seed=seed)) for seed in range(2, seeds + 1))]
    report(paper, f"{best:g}", others)
    loss = statistics.mean(run.loss for run in ours)
    name = f"{NAME}, {SCRIPTS[paper].model.__name__}, learning rate"
    rows = [(paper, best, statistics.mean(run.loss for run in others))]
    rows += [(f"{paper}-default", DEFAULT, first[DEFAULT].loss)] if DEFAULT in first else []
    return [row(work, "nats", loss, other, f"{name} {rate:g}", other / loss, 4) for work, rate, other in rows]


def report(paper: str, who: str, runs: list[Trained]) -> None:
    losses = ", ".join(f"{run.loss:.4f}" for run in runs)
    print(f"{paper:<6}{who:<7}{losses} nats; {runs[-1].steps:,} steps, {runs[-1].seconds:.0f} s", flush=True)


def section_of(paper: str, size: str | None, settings: Sequence[str]) -> PretrainConfig:
    """The section of the parameters, or that of a recipe, with settings such as ``training.batch=16`` in it."""
    section = stage_parameters.read(f"pretrain.{paper}")
    if size:
        objective = {"name": section["objective"]["name"]}
        rest = {"model": {}, "training": {"seed": 1, "optimizer": {}}}
        section = {"architecture": section["architecture"], "size": size, "objective": objective, **rest}
    for setting in settings:
        name, _, value = setting.partition("=")
        *parents, last = name.split(".")
        place = section
        for parent in parents:
            place = place[parent]
        place[last] = yaml.safe_load(value)
    where = f"pretrain.{paper}"
    return from_dict(PretrainConfig, fill_in_size(section, where), where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Our recipes beside transformers' scripts.")
    parser.add_argument("papers", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--size", help="the recipe of a time, such as '5 core-minutes'; else the demo's")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="what differs in ours")
    parser.add_argument("--wikitext", type=Path, metavar="FOLDER", help="more text")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES, help="the peer's learning rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="one thread, processor time: for a machine that is shared")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as stores:
        write_stores(*texts_of(given.wikitext), Path(stores), VOCABULARY)
        for paper in given.papers:
            section = section_of(paper, given.size, given.set)
            job = Job(paper, section, Path(stores), 1, 1 if given.busy else None)
            if rows := compared(job, given.rates, given.seeds):
                write_rows(rows, OUT)
