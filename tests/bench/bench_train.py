"""Training beside transformers on the same machine: tokens a second, and time to a validation loss. `make bench-train`.

Ours is the project's loop (bfloat16, compiled). The peer is transformers' Trainer (peers.py) in its default precision,
float32, and in its bfloat16 mode; on a machine with a GPU it is bfloat16 and torch_compile. Each side is a process of
its own and they take turns, so that both meet the same load and neither inherits a setting of the other. First turns
are not counted: they compile and warm up. Same first weights, batches and learning rates, no dropout: losses are
compared turn by turn.

With ``--wikitext FOLDER`` (train.txt and valid.txt of WikiText-2) the GPT is trained by both for so many steps, and the
wall clock of each to the Trainer's last validation loss is compared: validations left out, compilation counted.
Rows go to ``artifacts/bench/train.json``, where those of other works stay.
"""

import argparse
import json
import operator
import os
import statistics
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import torch
from peers import NAME, PEERS, peer_valid, same_model, train_peer
from torch.profiler import ProfilerActivity, profile

from plm_core.configs.architectures import MODELS
from plm_core.corpus.document import Document
from plm_core.corpus.normalize import paragraphs
from plm_core.corpus.sources import SOURCES, open_source
from plm_core.objectives.causal import Causal
from plm_core.objectives.masked import Masked
from plm_core.objectives.objective import Objective
from plm_core.objectives.permutation import Permutation
from plm_core.objectives.span_corruption import SpanCorruption
from plm_core.text.token_store import TokenStore, write_store
from plm_core.text.tokenizer_kinds import read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import TokenizerConfig
from plm_core.training.callbacks.loss_metrics import StepMetrics, Validation
from plm_core.training.callbacks.speed_monitor import Throughput
from plm_core.training.device import prepare
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.step import Evaluate
from plm_core.training.training_config import LoopConfig

Key = TypeVar("Key", bound=Hashable)
MANIFEST = "plm_core/corpus/sources/sotu.json"
OUT = Path("artifacts/bench/train.json")
KERNELS = OUT.with_name("kernels.txt")
GPU = torch.cuda.is_available()
MACHINE = "gpu" if GPU else "cpu"
SHAPE = {"vocab_size": 8192, "context": 256, "layers": 4, "heads": 4, "width": 256}
SENTINELS = {"t5": {"vocab_size": SHAPE["vocab_size"] + 100, "first_sentinel": SHAPE["vocab_size"] + 99}}
"""As published, a part of the vocabulary."""
SIZES = {name: MODELS[name].presets[size] for name, size in (("gpt", "small"), ("bert", "base"), ("xlnet", "base"))}
SIZES["llama"] = SIZES["gpt"]
SIZES["modernbert"] = MODELS["modernbert"].presets["base"] | {"context": 1024}
SIZES["t5"] = {"vocab_size": 32_128, "first_sentinel": 32_099, "context": 512, "layers": 12, "heads": 12, "width": 768}
"""On a GPU: the published sizes, at their published context; LLaMA has no small one, and ModernBERT is first trained at
this context (Warner et al. 2024, section 2.2)."""
VOCABULARY, STEPS_A_TURN, TURNS, WARM = 8192, 20 if GPU else 4, 5, 1
ROWS, TOKENS = 16, 16_384
"""Of a step: rows on a CPU, positions on a GPU."""
WIKITEXT_STEPS, WIKITEXT_TURN, WIKITEXT_ROWS = 120, 10, 48
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=5)
BARS = {"gpt-cpu": 2.2, "bert-cpu": 2.2, "xlnet-cpu": 3.0, "bert-gpu": 2.0, "xlnet-gpu": 4.0}
BARS |= {"llama-cpu": 2.2, "modernbert-cpu": 2.2, "t5-cpu": 2.0}
OBJECTIVES: dict[str, Objective] = {
    "gpt": Causal(),
    "bert": Masked(next_sentence=True),
    "xlnet": Permutation(),
    "llama": Causal(),
    "modernbert": Masked(),
    "t5": SpanCorruption(),
}
MFU = 0.55
"""What is asked of a GPU."""
PRECISIONS = ["bfloat16"] if GPU else ["float32", "bfloat16"]
"""The peer's."""
SAME = 0.02
"""How far two loss curves may be apart, as a fraction of the loss: bfloat16 and another order of sums."""
REACHED = 0.001
"""By how much of itself a validation loss may be above the one that it is said to reach."""


def plain(sizes: dict[str, Any]) -> dict[str, Any]:
    """A model's section without dropout; XLNet's without memory, which the peer would fill otherwise."""
    return {name: value for name, value in sizes.items() if name != "memory"} | {"dropout": 0.0}


@dataclass(frozen=True)
class Job:
    """What each side trains."""

    paper: str
    store: Path
    """A folder with the stores train and valid."""
    steps: int
    turn: int
    """Steps a turn."""
    valid_rows: int = 0
    """Rows to validate on behind every turn; 0 for none."""
    busy: bool = False
    """One thread, and processor time instead of wall clock."""
    tiny: dict[str, Any] | None = None
    """Sizes in place of the benchmark's, to see whether it runs: nothing is compiled then."""
    kernels: bool = False
    """Whether the last turn of ours is profiled, and does not count."""

    @property
    def shape(self) -> dict[str, Any]:
        """The model's section."""
        return plain(self.tiny or (SIZES[self.paper] if GPU else SHAPE | SENTINELS.get(self.paper, {})))

    @property
    def rows(self) -> int:
        """Of a step."""
        return TOKENS // self.shape["context"] if GPU else ROWS

    @property
    def loop(self) -> LoopConfig:
        every = self.turn if self.valid_rows else self.steps
        return LoopConfig(
            seed=1,
            steps=self.steps,
            batch=self.rows,
            optimizer=OPTIMIZER,
            precision="bfloat16",
            compile=self.tiny is None,
            report_every=self.turn,
            valid_every=every,
            snapshot_every=self.steps,
        )


@dataclass(frozen=True)
class Turn:
    """What a side says of a turn."""

    loss: float
    seconds: float
    """Without validation."""
    valid: float | None = None
    throughput: Throughput | None = None
    """Of ours."""


class Watch:
    """The clock of a side, and its end of the link over which turns are asked for."""

    def __init__(self, link: Connection, busy: bool) -> None:
        self.link, self.clock, self.start = link, process_time if busy else perf_counter, 0.0

    def begin(self) -> None:
        """Wait for the turn, then start."""
        self.link.recv()
        self.start = self.clock()

    def aside(self, work: Callable[[], float]) -> float:
        """The result of ``work``, whose time does not count."""
        stopped = self.clock()
        result = work()
        self.start += self.clock() - stopped
        return result

    def end(self, loss: float, valid: float | None, throughput: Throughput | None = None) -> None:
        self.link.send(Turn(loss, self.clock() - self.start, valid, throughput))


def side(link: Connection, job: Job, name: str) -> None:
    """A process: trains as ``name`` says, ours or the peer in a precision; a turn for each message that it gets."""
    device, watch = prepare(threads=1 if job.busy else None, deterministic=False), Watch(link, job.busy)
    torch.manual_seed(1)
    entry, objective, loop = MODELS[job.paper], OBJECTIVES[job.paper], job.loop
    model: Any = entry.model(entry.config(**job.shape))
    batches, unseen = (objective.batches(TokenStore(job.store / s), model.config, job.rows) for s in ("train", "valid"))
    held_out = unseen.held_out(job.valid_rows) if job.valid_rows else []

    def batch_at(step: int) -> Any:
        return batches.at(loop.order_seed, step)

    def our_valid(evaluate: Evaluate) -> float:
        losses = [evaluate(batch.to(device.device), None) for batch in held_out]
        return float(sum(loss.nll for loss in losses) / sum(loss.num_targets for loss in losses)) if losses else 1.0

    def validate(evaluate: Evaluate) -> Validation:
        return Validation(watch.aside(lambda: our_valid(evaluate)))

    def peer_end(model: Any, losses: list[torch.Tensor]) -> None:
        if GPU:
            torch.cuda.synchronize()
        loss = float(torch.stack(losses).mean())
        watch.end(loss, watch.aside(lambda: peer_valid(job.paper, model, held_out)) if held_out else None)

    if name != "ours":
        # What our loop asks for is none of the Trainer's defaults.
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_cudnn_sdp(True)
        theirs = same_model(job.paper, model)
        return train_peer(job.paper, theirs, batch_at, loop, name == "bfloat16", watch.begin, peer_end)
    with tempfile.TemporaryDirectory() as folder:
        model.to(device.device)
        our_turns(train(model, objective.loss, batch_at, validate, loop, device, Snapshots(Path(folder))), job, watch)


def our_turns(reports: Iterator[StepMetrics], job: Job, watch: Watch) -> None:
    """A report for each turn; the last is profiled if its kernels are asked for."""
    for turn in range(1, job.steps // job.turn + 1):
        watch.begin()
        last = job.kernels and turn * job.turn == job.steps
        activity = ProfilerActivity.CUDA if GPU else ProfilerActivity.CPU
        with profile(activities=[activity]) if last else nullcontext() as profiled:
            report = next(reports)
        watch.end(report.loss, report.valid_loss, report.throughput)
        if profiled:
            write_kernels(profiled, job)
    list(reports)


def write_kernels(profiled: Any, job: Job) -> None:
    """A file with what the kernels of a step took, the longest first: milliseconds, launches and name."""
    time = operator.attrgetter("self_device_time_total" if GPU else "self_cpu_time_total")
    events = sorted(profiled.key_averages(), key=time, reverse=True)
    lines = [f"{sum(map(time, events)) / 1000 / job.turn:9.3f} ms a step in all"]
    lines += [
        f"{time(event) / 1000 / job.turn:9.3f}{event.count / job.turn:8.1f}  {event.key[:120]}" for event in events
    ]
    KERNELS.parent.mkdir(parents=True, exist_ok=True)
    KERNELS.with_stem(f"kernels-{job.paper}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def take_turns(
    side: Callable[..., None], sides: Mapping[Key, tuple[Any, str]], together: int = 0
) -> dict[Key, list[Turn]]:
    """The turns of every side, a job and a name, each of which waits while another has its own.

    The first ``together``, whose time does not count, are had side by side: one compiles while the other does.
    """
    context = get_context("spawn")
    links, processes, turns = {}, [], {key: [] for key in sides}
    for key, (job, name) in sides.items():
        links[key], theirs = context.Pipe()
        processes.append(context.Process(target=side, args=(theirs, job, name), daemon=True))
        processes[-1].start()
        theirs.close()
    for turn in range(job.steps // job.turn):
        if turn < together:
            for link in links.values():
                link.send(None)
        for key, link in links.items():
            if turn >= together:
                link.send(None)
            turns[key].append(link.recv())
    for process in processes:
        process.join()
    return turns


def row(
    work: str, unit: str, ours: float, peer: float, peer_name: str, ratio: float, digits: int = 1
) -> dict[str, Any]:
    figures = {
        "ours": round(ours, digits),
        "peer": round(peer, digits),
        "peer_name": peer_name,
        "ratio": round(ratio, 3),
    }
    return {"work": work, "unit": unit, **figures}


def speeds(
    papers: list[str], store: Path, turns: int, busy: bool, tiny: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Tokens a second of ours and of the peer in each precision: prints a line a paper, and gives the rows of the file.

    All sides of all papers compile side by side.
    """
    precisions = PRECISIONS[:1] if tiny else PRECISIONS
    kernels = GPU or tiny is not None
    steps = STEPS_A_TURN * (WARM + turns + kernels)
    jobs = [Job(paper, store, steps, STEPS_A_TURN, busy=busy, tiny=tiny, kernels=kernels) for paper in papers]
    names = [*precisions, "ours"]
    by_side = take_turns(side, {(job.paper, name): (job, name) for job in jobs for name in names}, WARM)
    return [row for job in jobs for row in compared(job, {name: by_side[job.paper, name] for name in names})]


def compared(job: Job, by_side: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    """The turns of ours beside the peer's, by precision."""
    paper, precisions = job.paper, [name for name in by_side if name != "ours"]
    by_side = {name: turns[: -1 if job.kernels else None] for name, turns in by_side.items()}
    tokens = STEPS_A_TURN * job.rows * job.shape["context"]
    speed = {name: statistics.median(tokens / turn.seconds for turn in timed[WARM:]) for name, timed in by_side.items()}
    curves = {name: [turn.loss for turn in timed] for name, timed in by_side.items()}
    apart = max(abs(a - b) / b for a, b in zip(curves["ours"], curves[PRECISIONS[0]], strict=True))
    # The next sentence counts by row in the one and by masked token in the other, which is the same to a percent.
    equal = "equal" if apart <= SAME else "NOT EQUAL"
    rows = []
    for precision in precisions:
        work = f"{paper}-{MACHINE}" + ("-bf16" if precision != PRECISIONS[0] else "")
        name = f"{NAME}, {PEERS[paper][1].__name__}, {precision}{', torch_compile' if GPU else ' (its default)'}"
        name = name.replace("bfloat16 (its default)", "bf16=True")
        rows.append(row(work, "tokens/s", speed["ours"], speed[precision], name, speed["ours"] / speed[precision]))
    print(
        f"{paper:<7}{speed['ours']:>9,.0f}"
        + "".join(f"{row['peer']:>12,.0f}{row['ratio']:>7.2f}" for row in rows)
        + f"{BARS.get(rows[0]['work'], '-'):>6}   loss {curves['ours'][0]:.3f} to {curves['ours'][-1]:.3f}, the peer's "
        f"{curves[PRECISIONS[0]][0]:.3f} to {curves[PRECISIONS[0]][-1]:.3f}: {equal}, at most {apart:.2%} apart",
        flush=True,
    )
    return rows + used(paper, [turn.throughput for turn in by_side["ours"][WARM:] if turn.throughput], tokens)


def used(paper: str, turns: list[Throughput], tokens: int) -> list[dict[str, Any]]:
    """What ours took of a GPU beside time: prints a line, and gives the row of its MFU. Nothing on a CPU."""
    if not GPU:
        return []
    mfu = statistics.median(turn.mfu_datasheet or 0.0 for turn in turns)
    joules = statistics.median(turn.joules or 0.0 for turn in turns)
    data = statistics.median(turn.split.get("data", 0.0) / turn.seconds for turn in turns)
    memory = max(turn.peak_memory for turn in turns) / 2**30
    print(
        f"       {mfu:.1%} MFU of the datasheet, {memory:.1f} GiB, {1e6 * joules / tokens:,.0f} J a million tokens, "
        f"{data:.1%} of the time for batches",
        flush=True,
    )
    return [row(f"{paper}-mfu", "of the datasheet", mfu, MFU, "the bar", mfu / MFU, 3)]


def to_loss(folder: Path, busy: bool) -> dict[str, Any]:
    """The seconds of both to the Trainer's last validation loss on WikiText-2."""
    texts = {name: (folder / f"{name}.txt").read_text(encoding="utf-8").split("\n = ") for name in ("train", "valid")}
    precision = PRECISIONS[0]
    with tempfile.TemporaryDirectory() as stores:
        write_stores(texts["train"], texts["valid"], Path(stores))
        job = Job("gpt", Path(stores), WIKITEXT_STEPS, WIKITEXT_TURN, WIKITEXT_ROWS, busy)
        by_side = take_turns(side, {name: (job, name) for name in (precision, "ours")})
    target = by_side[precision][-1].valid
    seconds = {}
    for name, turns in by_side.items():
        reached = [i for i, turn in enumerate(turns) if turn.valid <= target * (1 + REACHED)]
        if not reached:
            raise SystemExit(
                f"{name}: {turns[-1].valid:.4f} nats at the end; the target of {target:.4f} was not reached"
            )
        seconds[name] = sum(turn.seconds for turn in turns[: reached[0] + 1])
        later = statistics.median(turn.seconds for turn in turns[1:])
        print(
            f"{name:<10}{seconds[name]:>8.1f} s to {turns[reached[0]].valid:.4f} nats, at step "
            f"{(reached[0] + 1) * job.turn} of {job.steps}; {turns[-1].valid:.4f} at the end; {job.turn} steps take "
            f"{later:.1f} s, the first {turns[0].seconds:.1f}"
        )
    ratio = seconds[precision] / seconds["ours"]
    print(f"to {target:.4f} nats (within {REACHED:.1%}): {ratio:.2f} times as fast; the bar is 2")
    name = f"{NAME}, GPT2LMHeadModel, {precision}, to its last validation loss {target:.4f}"
    return row(f"gpt-wikitext2-{MACHINE}", "s", seconds["ours"], seconds[precision], name, ratio)


def write_stores(train_texts: list[str], valid_texts: list[str], folder: Path, vocabulary: int = VOCABULARY) -> None:
    """The texts as token stores train and valid, by a BPE of the vocabulary trained on the first."""
    lines = [line for text in train_texts for line in paragraphs(text)]
    tokenizer = read_tokenizer(Path("tokenizer.model"), train_tokenizer(lines, TokenizerConfig("bpe", vocabulary)))
    for name, split in (("train", train_texts), ("valid", valid_texts)):
        write_store(folder / name, ((str(i), text) for i, text in enumerate(split)), tokenizer)


def write_rows(rows: list[dict[str, Any]], out: Path = OUT) -> None:
    """Into the file, in place of those of the same works."""
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    works = {new["work"] for new in rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [old for old in kept if old["work"] not in works] + rows
    out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(f"\n{out}")


def bench(papers: list[str], turns: int, busy: bool) -> None:
    """Print the table of speeds and write its rows."""
    shape = "published sizes" if GPU else ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    print(
        f"{MACHINE}, {f'{TOKENS:,} positions' if GPU else f'{ROWS} rows'} a step, {shape}; "
        f"tokens/s, medians of {turns} turns of {STEPS_A_TURN} steps"
        f"{'; one thread, processor time' if busy else ''}"
    )
    print(f"{'':<7}{'ours':>9}" + "".join(f"{name:>12}{'ratio':>7}" for name in PRECISIONS) + f"{'bar':>6}")
    texts = [d.text for d in open_source("sotu", SOURCES["sotu"](MANIFEST)) if isinstance(d, Document)]
    with tempfile.TemporaryDirectory() as folder:
        write_stores(texts, texts[-9:], Path(folder))
        write_rows([row for paper in papers for row in speeds([paper], Path(folder), turns, busy)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Training beside transformers.")
    parser.add_argument("papers", nargs="*", default=list(OBJECTIVES))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--busy", action="store_true", help="one thread, processor time: for a machine that is shared")
    parser.add_argument("--wikitext", type=Path, metavar="FOLDER", help="time to a validation loss, on this text")
    given = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path("artifacts/compiled").resolve()))
    if given.wikitext:
        write_rows([to_loss(given.wikitext, given.busy)])
    else:
        bench(given.papers, given.turns, given.busy)
