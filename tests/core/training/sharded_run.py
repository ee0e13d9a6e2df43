"""A few updates on 2 ranks that hold half of each parameter, beside the same on whole ones: `sharded_run.py FOLDER`.

Prints ``equal`` when the parameters and the state by name are the same, but for the last bit (the fused kernel rounds
the end of a tensor otherwise, and parts have other ends), and when a run restored from whole tensors goes on to the
same bits; and the message by which Muon is refused.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from plm_core.models.gpt import GPT, GPTConfig
from plm_core.training.optimizer import Optimizer, OptimizerConfig

RANKS = 2
# The gradient of the keys' bias is nothing but rounding, of which a small epsilon would make updates.
CONFIG = OptimizerConfig(0.05, 0, epsilon=1e-4)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def made(shard):
    torch.manual_seed(5)
    model = GPT(GPTConfig(vocab_size=37, context=13, layers=2, heads=3, width=21, dropout=0.0)).double()
    if shard:
        mesh = init_device_mesh("cpu", (RANKS,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, Optimizer(model, CONFIG)


def update(model, optimizer, step):
    """All ranks read the same rows, so that the mean of their gradients is the gradient."""
    ids = torch.randint(37, (4, 13), generator=torch.Generator().manual_seed(step))
    model.logits(model(ids)).logsumexp(-1).sum().backward()
    optimizer.step(0.05)


def run(rank, folder):
    torch.set_num_threads(1)
    store = distributed.FileStore(str(Path(folder) / "store"), RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    (model, optimizer), (other, its) = made(False), made(True)
    its.allocate()
    for step in (1, 2):
        update(model, optimizer, step)
        update(other, its, step)
    state, sharded = optimizer.tensors(), its.tensors()
    parts = [n for n, tensor in sharded.items() if isinstance(tensor, DTensor)]
    assert {n for n in sharded if not n.endswith(".step")} == set(parts), "the state is sharded as its parameter"
    assert sharded.keys() == state.keys()
    together = {n: whole(tensor).clone() for n, tensor in sharded.items()}
    torch.testing.assert_close(together, state, rtol=1e-13, atol=1e-14)
    resumed, again = made(True)
    resumed.load_state_dict(other.state_dict())
    again.restore(together)
    for one, whose in ((model, optimizer), (other, its), (resumed, again)):
        update(one, whose, 3)
    found, twice = ([whole(p) for p in one.parameters()] for one in (other, resumed))
    assert all(torch.equal(a, b) for a, b in zip(found, twice, strict=True))
    torch.testing.assert_close(found, [p.detach() for p in model.parameters()], rtol=1e-10, atol=1e-12)
    try:
        Optimizer(other, replace(CONFIG, name="muon"))
    except ValueError as error:
        if rank == 0:
            print("equal;", error, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(run, (sys.argv[1],), nprocs=RANKS)
