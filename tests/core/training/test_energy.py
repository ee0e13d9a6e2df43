"""Joules come from the machine's counters or not at all."""

import pytest
import torch

from plm_core.training.callbacks.speed_monitor import Energy

CPU = torch.device("cpu")
AROUND = 262_143_328_850


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


def test_the_packages_are_added_and_nothing_else(powercap):
    energy = Energy(CPU, powercap)
    count(powercap, domain_0=3_500_000, domain_1=1_250_000)
    assert energy.joules() == pytest.approx(2.5 + 0.25)
    count(powercap, domain_0=3_500_000, domain_1=8_250_000)
    assert energy.joules() == pytest.approx(7.0)  # since the last call
    assert energy.joules() == 0.0


def test_a_counter_that_began_again_at_zero_is_followed(powercap):
    count(powercap, domain_0=AROUND - 2_000_000, domain_1=0)
    energy = Energy(CPU, powercap)
    count(powercap, domain_0=1_500_000, domain_1=0)
    assert energy.joules() == pytest.approx(3.5)


@pytest.mark.parametrize("content", [None, "", "many"])
def test_a_package_that_cannot_be_read_leaves_no_number(powercap, content):
    energy = Energy(CPU, powercap)
    file = powercap / "intel-rapl:1/energy_uj"
    file.unlink() if content is None else file.write_text(content)
    assert energy.joules() is None
    assert Energy(CPU, powercap).joules() is None


def test_a_machine_without_counters_has_no_joules(tmp_path):
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
