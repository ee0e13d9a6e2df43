"""The operations and bytes of a step, counted by hand where that is easy, and the precision of what it keeps."""

import re

import pytest
import torch
from bench_roofline import GPUS, AsOnGpu, Counted, Work, depths, table
from bench_train import SHAPE
from papers import PAPERS, make

from plm_core.training.flops import META, on_meta
from plm_core.training.parallelize import blocks_of


def test_roofline_counts_bytes_and_flops():
    a, b = torch.empty(3, 5, device="meta"), torch.empty(5, 7, device="meta")
    with Work() as work:
        product = a @ b
        product.T.view(7, 3).add_(torch.empty(7, 1, device="meta").expand(7, 3))
    assert work.products == [Counted(2 * 3 * 5 * 7, 4 * (15 + 35 + 21))]
    empty, added = work.rest
    assert (empty.bytes, added.bytes) == (4 * 7, 4 * (21 + 7 + 21))
    rate, bandwidth = GPUS["H200"]
    assert Counted(10**15, 1).seconds("H200") == 10**15 / rate
    assert Counted(1, 10**15).seconds("H200") == 10**15 / bandwidth


@pytest.mark.parametrize("paper", ["gpt", "xlnet"])
def test_no_step_is_faster_than_its_operations_and_none_slower_than_eager(paper):
    head, cells = table([paper], {paper: SHAPE}, 1024)
    assert len(head) == len(cells)
    for gpu in GPUS:
        fused, eager, most, least = map(float, re.findall(r"[\d.]+", cells[head.index(f"{gpu}, ms (MFU)")]))
        assert 0 < fused < eager
        assert 0 < least < most <= 100


def test_roofline_depths_grow_with_minutes():
    head, *lines = depths("H200")
    names = ("minutes", "million weights", "billion tokens")
    minutes, weights, tokens = ([float(line[head.index(name)]) for line in lines] for name in names)
    assert weights == sorted(set(weights))
    used = [6e15 * n * d / (60 * t * GPUS["H200"][0]) for t, n, d in zip(minutes, weights, tokens, strict=True)]
    assert all(0.2 < share < 0.4 for share in used), used
    assert [line[head.index("size")] for line in lines] == ["`5`", "`8`", "`10`", "`16`"]


@pytest.mark.parametrize("name", PAPERS)
def test_on_a_gpu_in_bfloat16_the_residual_stream_and_what_is_carried_are_bfloat16(store, name):
    model, objective = make(name, dtype=torch.float32, width=48)
    batch, model = objective.batches(store, model.config, 4).at(3, 0).to(META), on_meta(model)
    seen = set()
    for block in blocks_of(model):
        for module in (block, *(child for child_name, child in block.named_modules() if "norm" in child_name)):
            module.register_forward_pre_hook(lambda _, read: seen.add(read[0].dtype))
    assert objective.loss(model, batch).nll.dtype == torch.float32
    assert seen == {torch.float32}
    seen.clear()
    with AsOnGpu():
        carry = objective.loss(model, batch).carry
    # The first part of a memory is empty: in float32 all of it would be for good.
    assert seen | {tensor.dtype for tensor in carry or () if tensor.is_floating_point()} == {torch.bfloat16}
