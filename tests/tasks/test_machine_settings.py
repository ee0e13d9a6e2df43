"""Facts of the machine come from its environment, and one that is none is refused by name."""

import pytest

from plm_core.config import UserError
from plm_core.shared.limits import processes
from tasks.settings.machine import pretraining_gpus, price


@pytest.mark.parametrize(("value", "expected"), [(None, None), ("0", 0.0), ("2.49", 2.49)])
def test_the_price_of_an_hour(monkeypatch, value, expected):
    monkeypatch.delenv("PLM_PRICE_PER_HOUR", raising=False)
    if value:
        monkeypatch.setenv("PLM_PRICE_PER_HOUR", value)
    assert price() == expected


@pytest.mark.parametrize("value", ["", "-1", "nan", "inf", "2,49"])
def test_a_price_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", value)
    with pytest.raises(UserError) as caught:
        price()
    assert str(caught.value).startswith(f"PLM_PRICE_PER_HOUR: found {value!r}; expected a number from 0 upwards")


@pytest.mark.parametrize("value", ["", "abc", "0", "1.5"])
@pytest.mark.parametrize(
    ("name", "read"), [("CORES", processes), ("GPUS", pretraining_gpus), ("RANKS", pretraining_gpus)]
)
def test_a_number_that_is_none_is_refused_by_name(monkeypatch, name, read, value):
    for known in ("CORES", "GPUS", "RANKS"):
        monkeypatch.delenv(f"PLM_{known}", raising=False)
    monkeypatch.setenv(f"PLM_{name}", "3")
    assert read() == 3
    monkeypatch.setenv(f"PLM_{name}", value)
    with pytest.raises(UserError, match=rf"^PLM_{name}: found '{value}'; expected a number of \w+, 1 or more$"):
        read()
