"""Ranks of relevant passages, and what they add to a score, against scikit-learn and against counting by hand."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import ndcg_score

from plm_core.config import UserError
from plm_core.evaluation import example_counts
from plm_core.evaluation.evaluate_modules import baseline, scores
from plm_core.evaluation.evidence import TASK_COLUMNS, read_task
from plm_core.evaluation.example_counts import counts, ranks
from plm_core.evaluation.sealed_csv import write_sealed

NAMES = ("ndcg_at_10", "mrr_at_10", "recall_at_10")


@pytest.mark.parametrize("form", [np.asarray, csr_matrix])
def test_ranking_scores_match_all_similarities(form, monkeypatch):
    """37 queries; scikit-learn sees the whole matrix, we one rank each."""
    monkeypatch.setattr(example_counts, "AT_ONCE", 5)
    draw = np.random.default_rng(5)
    queries, held = draw.normal(size=(37, 7)), draw.normal(size=(37, 7))
    similar, right = queries @ held.T, np.eye(37)
    places = ranks([f"q{i}" for i in range(37)], [f"p{i}" for i in range(37)], form(queries), form(held))
    assert places == [1 + int((row > row[i]).sum()) for i, row in enumerate(similar)]
    assert min(places) == 1 < 10 < max(places)
    measured = scores(NAMES, places, [1] * 37, ())
    assert measured["ndcg_at_10"] == pytest.approx(ndcg_score(right, similar, k=10), rel=1e-12)
    near = [rank for rank in places if rank <= 10]
    assert measured["mrr_at_10"] == pytest.approx(sum(1 / rank for rank in near) / 37, rel=1e-12)
    assert measured["recall_at_10"] == pytest.approx(len(near) / 37, rel=1e-12)
    assert baseline("ndcg_at_10", [1], [1] * 37, ()) == 0.0


def test_ranking_excludes_other_passages_of_the_query():
    held = np.array([[1.0], [2.0], [3.0]])
    assert ranks(["q", "r", "s"], ["x", "y", "x"], np.ones((3, 1)), held[:2]) == [2, 1, 2]
    assert ranks(["q", "q", "s"], ["x", "y", "z"], np.ones((3, 1)), held) == [2, 2, 1]


def test_ranking_ties_are_last():
    for value in (1.0, math.nan):
        assert min(ranks(list("abcd"), list("wxyz"), np.ones((4, 1)), np.full((4, 1), value))) >= 4


def test_ranking_evidence_refuses_invalid_ranks(tmp_path):
    def read(*given):
        rows = [(f"e{i}", "s", "", "", "1", rank, "", "ndcg_at_10", "m") for i, rank in enumerate(given)]
        write_sealed(tmp_path / "t.1.csv", TASK_COLUMNS, rows)
        return read_task([tmp_path / "t.1.csv"])

    table = read("1", "3", "11")
    assert table.value == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert table.by("recall_at_10").value == pytest.approx(2 / 3)
    assert table.results.right().tolist() == [[True, False, False]]
    for wrong in ("0", "x"):
        with pytest.raises(UserError, match="'e1'"):
            read("1", wrong)
    assert counts("mrr_at_10", 10, 1) == (0.1, 1.0)
