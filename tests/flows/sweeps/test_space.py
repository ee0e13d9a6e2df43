"""The section sweep: what it may contain, what it must not, and the time that it allows."""

import math

import pytest
import yaml

from flows.flow_configs import read_section
from flows.sweeps.study import Range, Sweep
from plm_core.shared.errors import UserError

GOOD = {
    "metric": "pretrain-gpt/valid_loss",
    "direction": "lower",
    "space": {
        "a.rate": {"low": 1.0e-3, "high": 0.1, "log": True},
        "a.layers": {"low": 1, "high": 4},
        "a.kind": ["x", "y"],
    },
    "trials": 7,
}


def sweep_of(root, **changes):
    (root / "params.yaml").write_text(yaml.safe_dump({"sweep": GOOD | changes}))
    return read_section(root, Sweep, "sweep")


def test_sweep_space_is_parsed(tmp_path):
    sweep = sweep_of(tmp_path)
    assert sweep.space == {"a.rate": Range(1e-3, 0.1, log=True), "a.layers": Range(1, 4), "a.kind": ["x", "y"]}
    assert (sweep.file, sweep.name) == ("artifacts/metrics/pretrain-gpt.json", "valid_loss")
    assert sweep_of(tmp_path, metric="ingest-own/own/documents").name == "own/documents"
    # Trials are comparable as long as space and metric are the same.
    assert sweep_of(tmp_path, trials=9, minutes=3, prune=False, seed=5).searched == sweep.searched
    others = [{"direction": "higher"}, {"metric": "a/b"}, {"space": GOOD["space"] | {"a.kind": ["x", "z"]}}]
    assert len({sweep.searched, *(sweep_of(tmp_path, **other).searched for other in others)}) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "valid_loss"}, r"sweep\.metric: 'valid_loss'; expected FILE/NAME, such as pretrain-gpt/valid_loss"),
        ({"space": {}}, r"sweep\.space: empty; expected at least one parameter"),
        ({"space": {"a": ["x"]}}, r"sweep\.space\.a: \['x'\]; expected at least two values, or low and high"),
        ({"space": {"a": {"low": 2, "high": 2}}}, r"low: 2, high: 2; expected a smaller and a larger number"),
        ({"space": {"a": {"low": 0, "high": 2, "log": True}}}, r"low: 0; expected a number above 0 with log"),
        ({"space": {"a": {"low": 0}}}, r"sweep\.space\.a.*high: missing"),
    ],
)
def test_invalid_sweep_space_is_one_line(tmp_path, changes, message):
    with pytest.raises(UserError, match=message) as refused:
        sweep_of(tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_sweep_limit_follows_from_minutes_or_cost(tmp_path, monkeypatch):
    monkeypatch.delenv("PLM_PRICE_PER_HOUR", raising=False)
    assert sweep_of(tmp_path).seconds() == math.inf
    assert sweep_of(tmp_path, minutes=1.5).seconds() == 90
    for price in ("", "0", "much"):
        monkeypatch.setenv("PLM_PRICE_PER_HOUR", price)
        with pytest.raises(UserError, match=r"sweep\.cost: 4, but PLM_PRICE_PER_HOUR is .*expected what an hour costs"):
            sweep_of(tmp_path, cost=4).seconds()
    monkeypatch.setenv("PLM_PRICE_PER_HOUR", "2.5")
    assert sweep_of(tmp_path, cost=5).seconds() == 7200
    assert sweep_of(tmp_path, cost=5, minutes=3).seconds() == 180
