"""Processes that train together, as under torchrun, on gloo: batches, losses and weights are those of one."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from folds import CONFIG

from plm_core.training.device import Device
from plm_core.training.ranks import Ranks, Unfit, require_fit

HERE = Path(__file__).parent
TOLERANCE = 1e-9
"""Of losses and weights in float64, relative: sums are taken in another order."""
PAPERS = ("gpt", "llama", "gpt_bert", "bert", "xlnet")


@pytest.fixture(scope="module")
def started():
    """Starts a training in ``ranked_run.py``: where its results are, the statuses of its processes, their errors."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "golden")])
    with subprocess.Popen(
        [sys.executable, HERE / "ranked_run.py"],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip

        def started(paper, folder, ranks=1, mode="ddp", stop=None):
            out, errors = (folder.parent / f"{folder.name}.{ranks}.{mode}{end}" for end in ("", ".errors"))
            arguments = [paper, str(folder), str(out), *([stop] if stop else [])]
            print(json.dumps([ranks, mode, str(errors), arguments]), file=server.stdin, flush=True)
            return out, json.loads(server.stdout.readline()), errors.read_text()

        yield started
        server.stdin.close()


@pytest.fixture(scope="module")
def trained(started):
    """The reports and weights of a run, or None when it stopped."""

    def trained(paper, folder, ranks=1, mode="ddp", stop=None):
        out, statuses, errors = started(paper, folder, ranks, mode, stop)
        assert statuses == [0] * ranks, errors
        return None if stop else (json.loads(out.read_text()), torch.load(f"{out}.pt", weights_only=True))

    return trained


def require_equal_reports(left, right, tolerance=TOLERANCE):
    for ours, theirs in zip(left[0], right[0], strict=True):
        for name in ("loss", "gradient_norm", "valid_loss", "predictions", "positions", "learning_rate"):
            expected = theirs[name] if theirs[name] is None else pytest.approx(theirs[name], rel=tolerance)
            assert ours[name] == expected, f"{name} of step {theirs['step']}"


def require_equal(left, right):
    require_equal_reports(left, right)
    assert left[1].keys() == right[1].keys()
    for name, weight in left[1].items():
        torch.testing.assert_close(weight, right[1][name], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.fixture(scope="module")
def alone(trained, tmp_path_factory):
    """What one process makes of a paper."""
    return cache(lambda paper: trained(paper, tmp_path_factory.mktemp("alone") / paper))


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_ddp_of_two_ranks_equals_one_and_resumes_alone(tmp_path, trained, alone, paper):
    alone = alone(paper)
    require_equal(trained(paper, tmp_path / "ddp", ranks=2), alone)
    trained(paper, tmp_path / "stopped", ranks=2, stop=5)
    require_equal(trained(paper, tmp_path / "stopped"), alone)


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_fsdp_equals_one_rank_and_snapshots_are_portable(tmp_path, trained, alone, paper):
    alone = alone(paper)
    require_equal(trained(paper, tmp_path / "fsdp", ranks=2, mode="fsdp"), alone)
    trained(paper, tmp_path / "stopped", ranks=2, mode="fsdp", stop=5)
    assert len(list((tmp_path / "stopped/step-00000005").glob("shard-*.safetensors"))) == 2
    require_equal(trained(paper, tmp_path / "stopped"), alone)


@pytest.mark.slow
def test_fsdp_muon_matrices_are_gathered_by_one_rank_each(tmp_path, trained, alone):
    # Four processes share two matrices of each shape, whose rows they cannot share evenly.
    require_equal(trained("gpt+muon", tmp_path / "fsdp", ranks=4, mode="fsdp"), alone("gpt+muon"))


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["gpt", "xlnet"])
def test_ranks_halve_rows_together_when_one_is_out_of_memory(tmp_path, trained, alone, paper):
    require_equal(trained(f"{paper}+hungry", tmp_path / "hungry", ranks=2), alone(paper))
    assert json.loads((tmp_path / "hungry/step-00000012/progress.json").read_text())["accumulation"] == 8


def others(monkeypatch, **differs):
    """Two processes, of which the second one differs; the first has an H100."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    monkeypatch.setattr(Ranks, "gathered", lambda self, value: [value, value | differs])
    return CONFIG, Device(torch.device("cuda"), 1, True), Ranks(size=2)


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"torch": "2.0.0"}, r"^torch: 2\..* in process 0, 2\.0\.0 in process 1; expected the same in all processes"),
        ({"device": "CPU"}, r"^device: H100 in process 0, CPU in process 1; expected the same in all processes"),
        ({"bfloat16": False}, r"^bfloat16: True in process 0, False in process 1; expected the same in all processes"),
    ],
)
def test_ranks_on_different_devices_are_refused(monkeypatch, differs, message):
    with pytest.raises(Unfit, match=message):
        require_fit(*others(monkeypatch, **differs))


def test_ranks_on_gpus_of_different_names_are_a_warning(monkeypatch):
    with pytest.warns(UserWarning, match=r"^device: H100 in process 0, A100 in process 1: a step takes as long as"):
        require_fit(*others(monkeypatch, device="A100"))


@pytest.mark.slow
def test_rank_out_of_memory_in_validation_reads_fewer_rows(tmp_path, trained, alone):
    require_equal(trained("gpt+looking", tmp_path / "looking", ranks=2), alone("gpt"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_ranks_that_would_not_compute_alike_are_refused(tmp_path, started, trained, mode):
    _, statuses, errors = started("gpt+bfloat16+mixed", tmp_path / "mixed", ranks=2, mode=mode)
    assert statuses == [1, 1]
    assert "Unfit: bfloat16: True in process 0, False in process 1; expected the same in all" in errors
    trained("gpt+mixed", tmp_path / "exact", ranks=2, mode=mode)  # in float64 it makes no difference


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "way"), [("ddp", "+buckets"), ("fsdp", "")])
def test_blocks_are_compiled_and_recomputed_and_losses_come_in_chunks(tmp_path, trained, alone, mode, way):
    require_equal(trained(f"gpt+compile+recompute+chunks{way}", tmp_path / mode, ranks=2, mode=mode), alone("gpt"))


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["gpt", "xlnet"])
def test_fsdp_gathers_bfloat16_weights(tmp_path, trained, alone, paper):
    run = trained(f"{paper}+bfloat16", tmp_path / "fsdp", ranks=2, mode="fsdp")
    require_equal_reports(run, alone(f"{paper}+bfloat16"), tolerance=0.02)
    assert all(weight.dtype == torch.float32 for weight in run[1].values())
    with pytest.raises(AssertionError, match="of step 2"):  # for one that multiplies in float32
        require_equal_reports(run, alone(paper), tolerance=1e-5)


@pytest.mark.slow
def test_resume_with_another_number_of_ranks(tmp_path, trained, alone):
    alone = alone("transformer_xl")
    require_equal(trained("transformer_xl", tmp_path / "ddp", ranks=4), alone)
    trained("gpt", tmp_path / "again", ranks=4, stop=5)
    resumed, whole = trained("gpt", tmp_path / "again", ranks=4), trained("gpt", tmp_path / "whole", ranks=4)
    assert all(torch.equal(weight, whole[1][name]) for name, weight in resumed[1].items())
    trained("transformer_xl", tmp_path / "stopped", stop=5)
    require_equal(trained("transformer_xl", tmp_path / "stopped", ranks=2), alone)
