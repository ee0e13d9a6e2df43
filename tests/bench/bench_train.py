"""Training beside transformers on the same machine: tokens a second, and time to a validation loss. `make bench-train`.

Ours is the project's loop (bfloat16, compiled). The peer is transformers' model with the loss of its own, trained by a
plain loop (its Trainer needs accelerate, which is not among the dependencies; a plain loop has none of its overhead):
AdamW of torch in its fused form, as many groups, the same clipping and learning rates, in float32 and in bfloat16
autocast, of which the better counts. Both begin with the same weights, read the same batches and take turns. First
turns are not counted: they compile and warm up. Dropout is 0 in both, so that losses can be compared step by step.
Writes ``artifacts/bench/train.json``.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import transformers
from torch.nn import functional as F

from plm_core.corpus.document import Document
from plm_core.corpus.normalize import paragraphs
from plm_core.corpus.sources import IngestConfig, open_source
from plm_core.interchange import FAMILIES
from plm_core.models import MODELS
from plm_core.objectives.causal import Causal, CausalBatch
from plm_core.objectives.loss import Batch, Batches, Objective
from plm_core.objectives.masked import Masked, MaskedBatch
from plm_core.objectives.permutation import Permutation, PermutationBatch
from plm_core.text.store import TokenStore, write_store
from plm_core.text.tokenizer import TokenizerConfig, read_tokenizer, train_tokenizer
from plm_core.training.config import LoopConfig
from plm_core.training.device import Device, prepare
from plm_core.training.loop import train
from plm_core.training.optimizer import Optimizer, OptimizerConfig
from plm_core.training.schedule import learning_rate_at, progress_at
from plm_core.training.snapshot import Snapshots

MANIFEST = "plm_core/corpus/sources/sotu.json"
OUT = Path("artifacts/bench/train.json")
SHAPE = {"context": 256, "layers": 4, "heads": 4, "width": 256, "dropout": 0.0}
VOCABULARY, ROWS, STEPS_A_TURN, TURNS, WARM = 8192, 16, 4, 5, 1
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=5)
BARS = {"gpt": 2.2, "bert": 2.2, "xlnet": 3.0}
OBJECTIVES: dict[str, Objective] = {
    "gpt": Causal(),
    "bert": Masked(next_sentence=True),
    "xlnet": Permutation(),
}
NOISE = 0.02
"""How far two loss curves may be apart, as a fraction of the loss: bfloat16 and another order of sums."""

BatchAt = Callable[[int], Batch]


def gpt_arguments(batch: CausalBatch) -> dict[str, Any]:
    """GPT2LMHeadModel's: ``shift_labels`` are targets that are shifted already, so that all of them count."""
    return {"input_ids": batch.inputs, "labels": batch.targets, "shift_labels": batch.targets, "use_cache": False}


def bert_arguments(batch: MaskedBatch) -> dict[str, Any]:
    """BertForPreTraining's: a label at every position, most of them ignored."""
    found = batch.targets != -100
    labels = torch.full_like(batch.inputs, -100)
    labels[found.nonzero()[:, 0], batch.positions[found]] = batch.targets[found]
    return {
        "input_ids": batch.inputs,
        "token_type_ids": batch.segments,
        "attention_mask": batch.keep.long(),
        "labels": labels,
        "next_sentence_label": batch.following,
    }


def xlnet_arguments(batch: PermutationBatch) -> dict[str, Any]:
    """XLNetLMHeadModel's: who may not see whom, and which positions the query stream is for."""
    hides = batch.order[:, None, :] >= batch.order[:, :, None]
    given = torch.ones_like(batch.order, dtype=torch.bool).scatter(1, batch.queries, False)
    hides &= ~(given[:, :, None] & (batch.order[:, None, :] <= batch.order[:, :, None]))
    return {
        "input_ids": batch.inputs,
        "token_type_ids": batch.segments,
        "perm_mask": hides.float(),
        "target_mapping": F.one_hot(batch.queries, batch.inputs.shape[1]).float(),
        "labels": batch.targets,
        "use_mems": False,
    }


PEERS: dict[str, tuple[Any, Any, Callable[[Any], dict[str, Any]]]] = {
    "gpt": (transformers.GPT2Config, transformers.GPT2LMHeadModel, gpt_arguments),
    "bert": (transformers.BertConfig, transformers.BertForPreTraining, bert_arguments),
    "xlnet": (transformers.XLNetConfig, transformers.XLNetLMHeadModel, xlnet_arguments),
}


def same_model(paper: str, ours: Any) -> Any:
    """The peer's model with our weights, without dropout, and with the attention that transformers chooses itself."""
    config, model, _ = PEERS[paper]
    family = FAMILIES[paper]
    theirs = model(config(**family.their_config(vars(ours.config))))
    weights = family.to_theirs(ours.state_dict(), ours.config.layers, ours.config.heads)
    lacking, unknown = theirs.load_state_dict(weights, strict=False)
    assert set(lacking) <= set(family.tied), lacking
    assert not unknown, unknown
    theirs.tie_weights()
    assert all(module.p == 0.0 for module in theirs.modules() if isinstance(module, torch.nn.Dropout))
    return theirs


def ours(paper: str, model: Any, batch_at: BatchAt, loop: LoopConfig, device: Device, folder: Path) -> Iterator[float]:
    """The project's loop: the mean losses of its reports."""
    reports = train(model, OBJECTIVES[paper].loss, batch_at, lambda _: 1.0, loop, device, Snapshots(folder))
    return (report.loss for report in reports)


def peer(paper: str, model: Any, batch_at: BatchAt, loop: LoopConfig, bfloat16: bool) -> Iterator[float]:
    """The peer's turns, of ``report_every`` steps each: their mean losses."""
    arguments = PEERS[paper][2]
    optimizer = Optimizer(model, loop.optimizer)
    model.train()
    for begin in range(0, loop.steps, loop.report_every):
        losses = []
        for step in range(begin, begin + loop.report_every):
            batch = batch_at(step)
            with torch.autocast("cpu", dtype=torch.bfloat16) if bfloat16 else nullcontext():
                loss = model(**arguments(batch)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), loop.optimizer.clip_norm)
            progress = progress_at(step, loop.steps, loop.optimizer)
            optimizer.step(learning_rate_at(step, progress, loop.optimizer))
            losses.append(loss.detach())
        yield float(torch.stack(losses).mean())


def batches_of(paper: str, store: TokenStore, model: Any) -> Batches:
    return OBJECTIVES[paper].batches(store, model.config, ROWS)


def new_model(paper: str) -> Any:
    """Our model of the bar's shape, from a seed."""
    torch.manual_seed(1)
    entry = MODELS[paper]
    return entry.model(entry.config(vocab_size=VOCABULARY, **SHAPE))


def compare(
    paper: str, store: TokenStore, device: Device, loop: LoopConfig, clock: Callable[[], float]
) -> dict[str, Any]:
    """Turns of ours and of the peer in both precisions; the row of the file."""
    begun = new_model(paper)
    batches = batches_of(paper, store, begun)

    def batch_at(step: int) -> Batch:
        return batches.at(loop.order_seed, step)

    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "float32": peer(paper, same_model(paper, begun), batch_at, loop, False),
            "bfloat16": peer(paper, same_model(paper, begun), batch_at, loop, True),
            "ours": ours(paper, begun, batch_at, loop, device, Path(folder)),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        curves: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(loop.steps // loop.report_every):
            for name, turns in sides.items():
                start = clock()
                curves[name].append(next(turns))
                rates[name].append(loop.report_every * ROWS * SHAPE["context"] / (clock() - start))
    speed = {name: statistics.median(found[WARM:]) for name, found in rates.items()}
    best = max(("float32", "bfloat16"), key=lambda name: speed[name])
    apart = max(abs(a - b) / b for a, b in zip(curves["ours"], curves["float32"], strict=True))
    # The next sentence counts by row in the one and by masked token in the other, which is the same to a percent.
    equal = "equal" if apart <= NOISE else "NOT EQUAL"
    ratio = speed["ours"] / speed[best]
    print(
        f"{paper:<8}{speed['ours']:>9,.0f}{speed['float32']:>10,.0f}{speed['bfloat16']:>10,.0f}{ratio:>8.2f}"
        f"{BARS[paper]:>7}   loss {curves['ours'][0]:.3f} to {curves['ours'][-1]:.3f}, the peer's "
        f"{curves['float32'][0]:.3f} to {curves['float32'][-1]:.3f}: {equal}, at most {apart:.2%} apart",
        flush=True,
    )
    return {
        "work": f"{paper}-cpu",
        "unit": "tokens/s",
        "ours": round(speed["ours"], 1),
        "peer": round(speed[best], 1),
        "peer_name": f"transformers {transformers.__version__} {PEERS[paper][1].__name__}, plain loop, {best}",
        "ratio": round(ratio, 3),
    }


def text_store(texts: list[str], folder: Path, valid: list[str] | None = None) -> list[TokenStore]:
    """A BPE of the vocabulary trained on the texts, and the texts (and others) as token stores."""
    lines = [line for text in texts for line in paragraphs(text)]
    tokenizer = read_tokenizer(Path("tokenizer.model"), train_tokenizer(lines, TokenizerConfig("bpe", VOCABULARY)))
    for name, split in (("train", texts), ("valid", valid or texts[-3:])):
        write_store(folder / name, ((str(i), text) for i, text in enumerate(split)), tokenizer)
    return [TokenStore(folder / name) for name in ("train", "valid")]


def bench(papers: list[str], turns: int, busy: bool) -> None:
    """Print the table and write the file."""
    device = prepare(threads=1 if busy else None)
    loop = LoopConfig(
        seed=1,
        steps=STEPS_A_TURN * (turns + WARM),
        batch=ROWS,
        optimizer=OPTIMIZER,
        precision="bfloat16",
        compile=True,
        report_every=STEPS_A_TURN,
        valid_every=STEPS_A_TURN * (turns + WARM),
        snapshot_every=STEPS_A_TURN * (turns + WARM),
    )
    texts = [d.text for d in open_source("sotu", IngestConfig("sotu", MANIFEST)) if isinstance(d, Document)]
    print(
        f"{device.threads} threads, batch {ROWS} x {SHAPE['context']}, {SHAPE['layers']} layers x {SHAPE['width']}, "
        f"{SHAPE['heads']} heads, vocabulary {VOCABULARY}; tokens/s, medians of {turns} turns of {STEPS_A_TURN} steps "
        f"after {WARM} that is not counted{'; processor time' if busy else ''}"
    )
    print(f"{'':<8}{'ours':>9}{'float32':>10}{'bfloat16':>10}{'ratio':>8}{'bar':>7}")
    with tempfile.TemporaryDirectory() as folder:
        store, _ = text_store(texts, Path(folder))
        rows = [compare(paper, store, device, loop, process_time if busy else perf_counter) for paper in papers]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(f"\n{OUT}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Training beside transformers.")
    parser.add_argument("papers", nargs="*", default=list(OBJECTIVES))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--busy", action="store_true", help="one thread, processor time: for a machine that is shared")
    given = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path("artifacts/compiled").resolve()))
    bench(given.papers, given.turns, given.busy)
