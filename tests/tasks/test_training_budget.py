"""The budget of a training run: it ends with its state saved, and resumes with a higher budget."""

import json

import pytest

from plm_core.shared.errors import BUDGET_SPENT

DEAR = {"PLM_PRICE_PER_HOUR": "3600000"}
"""A thousand per second: whatever the machine, a budget of 0.001 is spent by the first step."""
OUTS = ("artifacts/models/gpt", "artifacts/curves/gpt.csv", "artifacts/metrics/pretrain-gpt.json")


def results(project):
    return {name: data for name, data in project.files().items() if name.startswith(OUTS)}


@pytest.mark.parametrize("ranks", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_spent_budget_resumes_bit_identical_with_a_higher_one(built, small, ranks):
    if ranks == "1":
        expected = results(built)
    else:
        whole = small.copied(small.root.parent / "whole")
        whole.run("tasks.stages.pretrain", "gpt", PLM_RANKS=ranks)
        expected = results(whole)
    for name in results(small):
        (small.root / name).unlink()
    _, err = small.run("tasks.stages.pretrain", "gpt", code=BUDGET_SPENT, **DEAR, PLM_BUDGET="0.001", PLM_RANKS=ranks)
    assert "error: pretrain-gpt has cost " in err
    assert " of 0.001 (PLM_BUDGET); state saved at step 1 of 26; raise PLM_BUDGET to resume from there\n" in err
    assert len(list((small.root / "artifacts/snapshots").glob("*/step-*"))) == 1
    spent = json.loads((small.root / "artifacts/meters/pretrain-gpt.json").read_text())["cost"]
    # The next night finds nothing to spend, and does not train a step of it.
    _, err = small.run("tasks.stages.pretrain", "gpt", code=BUDGET_SPENT, **DEAR, PLM_BUDGET="0.001", PLM_RANKS=ranks)
    assert "state saved at" not in err
    assert err.count(" of 0.001 (PLM_BUDGET); raise PLM_BUDGET to resume from there\n") >= 1
    assert not results(small)
    small.run("tasks.stages.pretrain", "gpt", **DEAR, PLM_BUDGET="1000000", PLM_RANKS=ranks)
    assert results(small) == expected
    assert json.loads((small.root / "artifacts/meters/pretrain-gpt.json").read_text())["cost"] > spent
