"""Facts of the machine come from its environment, and one that is none is refused by name."""

import pytest

from plm_core.config import UserError
from plm_core.shared.environment import processes
from tasks.parameters.environment_limits import budget, pretraining_gpus, price

READERS = {
    "PLM_CORES": processes,
    "PLM_GPUS": pretraining_gpus,
    "PLM_RANKS": pretraining_gpus,
    "PLM_PRICE_PER_HOUR": price,
    "PLM_BUDGET": budget,
}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in READERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", READERS)
def test_a_number_is_read_and_anything_else_is_refused_by_name(monkeypatch, name):
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", "2.49")
    monkeypatch.setenv(name, "3")
    assert READERS[name]() == 3
    for value in ("", "abc", "-1", "2,49", "nan", "inf"):
        monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=rf"^{name}: found '{value}'; expected a number"):
            READERS[name]()


def test_budget_needs_a_price_and_may_not_be_zero(monkeypatch):
    assert (price(), budget()) == (None, None)
    monkeypatch.setenv("PLM_BUDGET", "5")
    for value in (None, "0"):
        if value:
            monkeypatch.setenv("PLM_PRICE_PER_HOUR", value)
        with pytest.raises(UserError, match=r"PLM_BUDGET: 5, but .*expected PLM_PRICE_PER_HOUR too"):
            budget()
    monkeypatch.setenv("PLM_BUDGET", "0")
    with pytest.raises(UserError, match=r"^PLM_BUDGET: found '0'; expected a number above 0"):
        budget()
