"""Small trainings of several processes, which one process forks that has imported all they need.

A training is PAPER[+WAY...] FOLDER OUT [STOP]. A way is muon, recompute, compile (into graphs, which are not turned
into machine code), chunks (of the loss), bfloat16 (imitated where a machine has none), hungry or looking (the last
process has no room for two rows beside gradients, or without learning), mixed (only the first multiplies bfloat16), or
buckets (DDP exchanges gradients in two, at whose border the compiler cuts its graph). Its batches are cut into four
parts, shared by the processes. Ends after STOP steps with its state saved, or goes to the end; the first process writes
the reports and the whole weights to OUT.
"""

import json
import multiprocessing
import os
import socket
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
from folds import CONFIG, Stops
from test_curves import Text, initial_model
from torch.nn import functional as F

from plm_core.objectives import objective as losses
from plm_core.training import parallelize
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.device import prepare
from plm_core.training.loop import Stopped, train
from plm_core.training.ranks import gather_weights, join, leave
from plm_core.training.snapshot import Snapshots

WAYS = {
    "muon": {"optimizer": replace(CONFIG.optimizer, name="muon")},
    "recompute": {"activation_checkpointing": True},
    "compile": {"compile": True},
    "bfloat16": {"precision": "bfloat16"},
}


def as_on_cuda():
    """Gather weights as for a GPU, and have norms computed as autocast does there: in float32."""
    plain, shared = F.layer_norm, parallelize.ParallelLoss
    F.layer_norm = lambda x, shape, weight, bias, eps: plain(x.float(), shape, weight.float(), bias.float(), eps)
    parallelize.ParallelLoss = lambda *given: shared(*given[:-1], True)


def hungry(loss_of, looking):
    """A loss that refuses two rows as an allocator would: when it is ``looking``, or else when it learns and there are
    gradients of a part before."""

    def loss(model, batch, carry):
        learning = torch.is_grad_enabled()
        full = learning and any(parameter.grad is not None for parameter in model.parameters())
        if len(batch.inputs) > 1 and (not learning if looking else full):
            raise torch.OutOfMemoryError("no room")
        return loss_of(model, batch, carry)

    return loss


def main(paper, folder, out, stop=None):
    paper, *ways = paper.split("+")
    device, ranks = replace(prepare(threads=1), bfloat16=True), join()
    if "mixed" in ways:
        device = replace(device, bfloat16=ranks.first)
    config = replace(CONFIG, steps=14, accumulation=4)
    for way in WAYS.keys() & ways:
        config = replace(config, **WAYS[way])
    model, objective = initial_model(paper)
    if "bfloat16" in ways:
        model = model.float()
        as_on_cuda()
    parallelize._compile = partial(parallelize._compile, backend="aot_eager")
    if "buckets" in ways:
        dist._DEFAULT_FIRST_BUCKET_BYTES = 10_000
    if "chunks" in ways:
        losses.AT_ONCE = 300
    loss_of = objective.loss
    if {"hungry", "looking"} & set(ways) and ranks.rank == ranks.size - 1:
        loss_of = hungry(objective.loss, "looking" in ways)
    batches, held_out = (objective.batches(Text.made(seed, 29), model.config, config.batch) for seed in (5, 3))

    def seen(model, batch, carry):
        loss = loss_of(model, batch, carry)
        if not torch.is_grad_enabled():
            rows.append(len(batch.inputs))
        return loss

    rows = []

    def validate(evaluate):
        rows.clear()
        loss = evaluate(held_out.held_out(8)[0], None)
        assert sum(rows) == 8 // ranks.size
        return Validation(float(loss.nll / loss.num_targets))

    interrupted = Stops(int(stop)) if stop and ranks.rank == ranks.size - 1 else lambda: False
    snapshots = Snapshots(Path(folder), ranks=ranks)

    def batch_at(step):
        return batches.share(13, step, ranks.rank, ranks.size)

    reports = train(model, seen, batch_at, validate, config, device, snapshots, ranks, interrupted)
    try:
        written = [asdict(replace(report, throughput=None)) for report in reports]
    except Stopped:
        return
    weights = gather_weights(model.state_dict(), ranks)
    assert bool(weights) == ranks.first
    assert ranks.size == 1 or ranks.mode == "ddp" or type(model.tokens.weight.data).__name__ == "DTensor"
    if ranks.first:
        Path(out).write_text(json.dumps(written))
        torch.save(weights, f"{out}.pt")
    leave()


def begin(environment, errors, arguments):
    """Be one of the processes, with what torchrun would have set."""
    os.environ |= environment
    with Path(errors).open("a") as file:
        os.dup2(file.fileno(), 2)
    main(*arguments)


def serve():
    """For each line, `[ranks, mode, errors, arguments]` as JSON: run it to its end, and answer with their statuses."""
    fork = multiprocessing.get_context("fork")
    for line in sys.stdin:
        ranks, mode, *given = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        meeting |= {"WORLD_SIZE": str(ranks), "PLM_PARALLEL": mode}
        processes = [fork.Process(target=begin, args=(meeting | {"RANK": str(n)}, *given)) for n in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print([process.exitcode for process in processes], flush=True)


if __name__ == "__main__":
    serve()
