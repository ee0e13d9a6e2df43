"""Evidence on minimal pairs: the likelier text is the answer, a tie is half, and documents are drawn whole."""

import numpy as np
import pytest

from plm_core.benchmarks.pair_sets import Pair
from plm_core.configs.stage_configs import LikelihoodConfig
from plm_core.evaluation import significance
from plm_core.evaluation.evidence import TASK_COLUMNS, read_task
from plm_core.evaluation.pair_scoring import file_of, pair_rows
from plm_core.evaluation.sealed_csv import sealed

CONFIG = LikelihoodConfig(stride=5, excerpt=3)


def table(folder, answers):
    """The evidence of pairs, (paradigm, group, nats of the good text, nats of the bad)."""
    pairs = [
        Pair(f"p{i:03}", f"good {i}", f"bad {i}", paradigm, group) for i, (paradigm, group, *_) in enumerate(answers)
    ]
    path = folder / file_of("own")
    path.write_text(sealed(TASK_COLUMNS, pair_rows(pairs, [(good, bad) for *_, good, bad in answers], CONFIG)))
    return read_task([path])


def test_minimal_pair_tie_counts_half(tmp_path):
    answers = [
        ("x", "a", 1.0, 2.0),
        ("x", "a", 2.0, 1.0),
        ("y", "b", 3.0, 3.0),
        ("y", "b", 0.1 + 0.2, 0.3),
        ("y", "", 1, 9),
        ("y", "", 100.0, 100.0001),
    ]
    pair_table = table(tmp_path, answers)
    assert pair_table.predictions == (("good", "bad", "tie", "tie", "good", "good"),)
    assert pair_table.metric == "own/score"
    assert pair_table.value == pytest.approx((1 + 0 + 0.5 + 0.5 + 1 + 1) / 6)
    assert pair_table.names == ("a", "a", "b", "b", "p004", "p005")
    apart = np.array([1, 1, 0, 0, 8, 1e-4])
    assert pair_table.confidences[0] == pytest.approx(1 / (1 + np.exp(-apart)))
    assert pair_table.unread().values(np.ones((1, 6))) == pytest.approx(0.5)


def test_minimal_pair_confidence_does_not_overflow(tmp_path):
    assert table(tmp_path, [("", "", 1.0, 1e6), ("", "", 1e6, 1.0)]).confidences[0].tolist() == [1.0, 1.0]


def test_bootstrap_draws_documents_across_paradigms(tmp_path):
    """The deviation of the score is that of a mean over documents, although each has other paradigms than the next."""
    draw = np.random.default_rng(7)
    answers, shares = [], []
    for number in range(60):
        right = draw.random() < 0.5
        paradigms = draw.choice(list("uvwxyz"), 3, replace=False)
        answers += [(paradigm, f"d{number}", *((1.0, 2.0) if right else (2.0, 1.0))) for paradigm in paradigms]
        shares.append(right)
    pair_table = table(tmp_path, answers)
    (draws,) = significance.bootstrap([pair_table.results], significance.generator())
    assert np.std(draws[""].total) == pytest.approx(np.std(shares, ddof=1) / np.sqrt(60), rel=0.05)
    assert draws[""].freedom == 59
    for paradigm in "uvwxyz":
        assert draws[paradigm].total.mean() == pytest.approx(
            pair_table.results.values(weights(pair_table, paradigm))[0, 0], abs=0.02
        )


def weights(pair_table, paradigm):
    return (pair_table.results.strata == pair_table.results.subsets.index(paradigm)).astype(float)[None]


def test_paradigm_of_one_document_has_the_widest_interval(tmp_path):
    """Two thirds of the draws lack the document: they are no zeros."""
    answers = [("x", f"d{i}", 1.0, 2.0) for i in range(20)] + [("rare", "d3", 1.0, 2.0)]
    (draws,) = significance.bootstrap([table(tmp_path, answers).results], significance.generator())
    assert draws["rare"].total.tolist() == pytest.approx([1.0] * significance.RESAMPLES)
    assert significance.interval(draws["rare"]) == significance.Interval(0.0, 1.0)
