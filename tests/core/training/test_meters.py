"""The meters say what steps took: each position once, and their operations over what the device was measured to do."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from plm_core.models.bert import BERTConfig
from plm_core.models.gpt import GPTConfig
from plm_core.models.xlnet import XLNetConfig
from plm_core.objectives.causal import Causal
from plm_core.objectives.masked import Masked
from plm_core.objectives.permutation import Permutation
from plm_core.training.callbacks.speed_monitor import Energy, SpeedMonitor, bytes_per_position
from plm_core.training.device import Device
from plm_core.training.flops import step_flops

CPU = torch.device("cpu")
SIZES = {"vocab_size": 307, "context": 29, "layers": 2, "heads": 3, "width": 24}
OBJECTIVES = {
    "stream": (GPTConfig(**SIZES), Causal(), 29),
    "memory": (XLNetConfig(**SIZES, memory=7), Causal(streams=True), 29),
    "sentences": (BERTConfig(**SIZES), Masked(next_sentence=True), 26),
    "full": (BERTConfig(**SIZES), Masked(), 27),
    "permutation": (XLNetConfig(**SIZES), Permutation(), 26),
}


@pytest.fixture
def now(monkeypatch):
    """A time that moves by a quarter of a second each time somebody looks, and when it is told to."""
    moment = [0.0]

    def look():
        moment[0] += 0.25
        return moment[0]

    monkeypatch.setattr("plm_core.training.device.perf_counter", look)
    return moment


@pytest.fixture
def causal(make_gpt, store):
    """A small GPT, its loss, and a batch of 5 rows of 13."""
    model = make_gpt(vocab_size=307, dtype=torch.float32)
    return model, Causal().loss, Causal().batches(store, model.config, 5).at(3, 0)


def profiler(model, loss_of, precision="float32", bfloat16=False, **options):
    return SpeedMonitor(model, loss_of, Device(CPU, 1, bfloat16), precision, **options)


@pytest.mark.parametrize("ranks", [1, 2])
def test_meters_of_some_steps_by_hand(now, causal, ranks):
    made = profiler(*causal[:2], ranks=ranks)
    made.calibrate(causal[2])
    now[0] += 70.0  # a validation
    made.start()
    for name, seconds in [("data", 1.0), ("forward", 2.0), ("backward", 3.0), ("optimizer", 0.5), ("data", 1.0)]:
        now[0] += seconds
        made.lap(name)
    meters = made.read(positions=1000)
    assert meters.split == {"data": 2.5, "forward": 2.25, "backward": 3.25, "optimizer": 0.75, "other": 0.25}
    assert meters.seconds == sum(meters.split.values()) == 9.0
    assert (meters.positions, meters.tokens_per_second) == (1000, 1000 / 9.0)
    a_position = step_flops(*causal) / (5 * 13)
    assert meters.mfu_measured == pytest.approx(a_position * 1000 / 9.0 / ranks / (2 * 512**3 / 0.25))
    assert meters.mfu_datasheet is None


def test_meters_of_partial_batches_match_whole_ones(now, causal):
    rates = []
    for rows in (causal[2], next(causal[2].split(5))):
        made = profiler(*causal[:2])
        made.calibrate(rows)
        rates.append(made.read(100).mfu_measured)
    assert rates[0] == rates[1] > 0


def test_mfu_uses_the_precision_that_runs(monkeypatch, causal):
    precisions = []
    measured = "plm_core.training.callbacks.speed_monitor.measured_flops"
    monkeypatch.setattr(measured, lambda device, precision: precisions.append(precision))
    for precision, able in [("float32", True), ("bfloat16", True), ("bfloat16", False)]:
        profiler(*causal[:2], precision, able).calibrate(causal[2])
    assert precisions == ["float32", "bfloat16", "float32"]


def looks_at_a_number(nats):
    return nats * float(nats.detach())


def calls_a_kernel(nats):
    q = torch.zeros(2, 3, 128, 16, device=nats.device)
    return nats + flex_attention(q, q, q).sum()


@pytest.mark.parametrize("last", [looks_at_a_number, calls_a_kernel])
def test_model_without_flop_count_trains_without_mfu(causal, last):
    model, loss_of, batch = causal

    def uncountable(model, batch, carry):
        loss = loss_of(model, batch, carry)
        return replace(loss, nll=last(loss.nll))

    made = profiler(model, uncountable)
    with pytest.warns(UserWarning, match=r"^meters: no MFU: cannot determine the operations of a step: .*meta"):
        made.calibrate(batch)
    assert made.read(100).mfu_measured is None


def test_peak_memory_is_of_this_process_not_its_parent():
    """The kernel begins a child's ru_maxrss with its parent's: a small stage of a large flow would look as large."""
    big = 1 << 30
    child = (
        "import torch; from plm_core.training.callbacks.speed_monitor import peak_memory\n"
        "cpu = torch.device('cpu'); before = peak_memory(cpu)\n"
        "block = torch.ones(64 << 20, dtype=torch.uint8); after = peak_memory(cpu)\n"
        "del block; print(before, after, peak_memory(cpu))"
    )
    parent = (
        f"import subprocess, sys; block = bytearray(b'x') * {big}\n"
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True, check=True).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    before, after, later = map(int, done.stdout.split())
    assert before < big
    assert before + (32 << 20) < min(after, later) < big


@pytest.mark.parametrize("name", OBJECTIVES)
def test_bytes_per_position_by_objective(name, store):
    config, objective, tokens = OBJECTIVES[name]
    batches = objective.batches(store, config, 5)
    bytes_a_token = store.bytes.sum() / len(store)
    assert bytes_per_position(batches, store, seed=3) == pytest.approx(bytes_a_token * tokens / 29)


def test_bytes_per_position_excludes_padding(store):
    batches = Causal(packing="documents").batches(store, GPTConfig(**SIZES), 64)
    share = batches.metrics()["packing_utilisation"]
    assert share < 1
    expected = share * store.bytes.sum() / len(store)
    assert bytes_per_position(batches, store, seed=3) == pytest.approx(expected, rel=0.1)


AROUND = 262_143_328_850
"""The microjoules at which a counter begins again at zero."""


@pytest.fixture
def powercap(tmp_path):
    """The files of two packages with a domain of one, of the whole platform, and of the same package by another way."""
    for folder, name in {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{name}\n")
        (tmp_path / folder / "max_energy_range_uj").write_text(f"{AROUND}\n")
        (tmp_path / folder / "energy_uj").write_text("1000000\n")
    (tmp_path / "intel-rapl").mkdir()  # the control type itself has no counter
    return tmp_path


def count(powercap, **microjoules):
    for folder in powercap.iterdir():
        if folder.name != "intel-rapl":
            value = microjoules.get(folder.name.replace("intel-rapl:", "domain_"), 999_000_000)
            (folder / "energy_uj").write_text(f"{value}\n")


def test_energy_adds_cpu_packages_only(powercap):
    energy = Energy(CPU, powercap)
    count(powercap, domain_0=3_500_000, domain_1=1_250_000)
    assert energy.joules() == pytest.approx(2.5 + 0.25)
    count(powercap, domain_0=3_500_000, domain_1=8_250_000)
    assert energy.joules() == pytest.approx(7.0)  # since the last call
    assert energy.joules() == 0.0


def test_energy_counter_may_wrap_around(powercap):
    count(powercap, domain_0=AROUND - 2_000_000, domain_1=0)
    energy = Energy(CPU, powercap)
    count(powercap, domain_0=1_500_000, domain_1=0)
    assert energy.joules() == pytest.approx(3.5)


@pytest.mark.parametrize("content", [None, "", "many"])
def test_energy_is_unknown_when_a_package_is_unreadable(powercap, content):
    energy = Energy(CPU, powercap)
    file = powercap / "intel-rapl:1/energy_uj"
    file.unlink() if content is None else file.write_text(content)
    assert energy.joules() is None
    assert Energy(CPU, powercap).joules() is None


def test_energy_is_unknown_without_counters(tmp_path):
    assert Energy(CPU, tmp_path / "powercap").joules() is None
    (tmp_path / "powercap").mkdir()
    assert Energy(CPU, tmp_path / "powercap").joules() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_works_takes_energy():
    energy = Energy(torch.device("cuda"))
    a = torch.randn(8192, 8192, device="cuda")
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
    joules = energy.joules()
    assert joules is None or joules > 0
