"""The gate promotes the better model, rarely an equal one, and never compares what cannot be compared."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.evaluation.answers import Answers, Sums, score_by_subset
from plm_core.evaluation.evidence import COMPARED, LIKELIHOOD, Table, read_task
from plm_core.evaluation.gate_rules import GateRules, MetricRule
from plm_core.evaluation.promotion_gate import (
    UNJUDGED,
    Evidence,
    also_against,
    also_on_old_text,
    decide,
    read_evidence,
)

RULES = GateRules(
    primary="bits_per_byte",
    alpha=0.05,
    margin=0.0,
    metrics={"bits_per_byte": MetricRule("lower", 0.0), "era/score": MetricRule("higher", 0.03)},
)
PAPERS = GateRules(
    primary="score",
    alpha=0.05,
    margin=0.01,
    metrics={name: MetricRule("lower", 0.02) for name in COMPARED} | {"score": MetricRule("higher", 0.03)},
)
"""Rules for models of different papers, as in the parameters."""


def write(
    folder,
    nats=0.0,
    correct=50,
    quantity="bits_per_byte",
    task="era",
    documents=12,
    last_text="7",
    rule="r",
    parameters=1000,
    size=100,
    seeds=1,
    turn=0,
    paragraphs=0,
):
    """An evidence folder: documents of 10 bytes, with so many nats more than usual each; and ``size`` examples of four
    classes, ``correct`` of them right, those that come first after the first ``turn``; ``paragraphs`` make a group."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [(i, f"{i}" if i else last_text, 10, 7, 1 + nats + 0.01 * i, quantity, rule) for i in range(documents)]
    files = {"likelihood": [("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured"), *texts]}
    for seed in range(1, seeds + 1):
        groups = [f"d{i // paragraphs}" if paragraphs else "" for i in range(size)]
        given = [f"era{(i + ((i - turn) % size >= correct)) % 4}" for i in range(size)]
        examples = [(f"e{i}", f"sha{i}", groups[i], "", f"era{i % 4}", given[i]) for i in range(size)]
        header = ("id", "sha256", "group", "subset", "label", "prediction", "score", "measured")
        files[f"{task}.{seed}"] = [header, *((*example, "accuracy", rule) for example in examples)]
    files["cost"] = [("quantity", "value"), ("parameters", parameters)]
    for name, rows in files.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return folder


def with_tasks(folder, quantity, era, following, nats=0.0, **how):
    """An evidence folder with two tasks, of whose examples so many are right."""
    write(folder, nats, era, quantity, **how)
    return write(folder, nats, following, quantity, task="next", **how)


def rewritten(path, change):
    """Change the rows of a file: ``change`` returns one from its row as a dict."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row | change(row) for row in reader]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, reader.fieldnames)
        writer.writeheader()
        writer.writerows(rows)


def as_pair(row):
    """A pair instead of an example of four classes, answered as rightly."""
    answer = "good" if row["label"] == row["prediction"] else "bad"
    return {"label": "good", "prediction": answer, "score": "pair_accuracy"}


def verdicts(decision):
    return {row.metric: row.verdict for row in decision.table}


def judge(challenger, champion, rules=RULES, earlier_challengers=0):
    evidence = read_evidence(challenger, rules), read_evidence(champion, rules, partial=True)
    return decide(*evidence, rules, earlier_challengers=earlier_challengers)


def by_tasks(challenger, champion, rules=PAPERS, earlier_challengers=0):
    return judge(challenger, champion, rules.for_evidence(challenger), earlier_challengers)


@pytest.mark.parametrize("metric", ["bits_per_byte", "era/score", "score"])
@pytest.mark.parametrize("better", [True, False])
def test_gate_passes_the_better_and_refuses_the_worse_on_every_metric(tmp_path, metric, better):
    good, bad = write(tmp_path / "good", nats=-0.1, correct=70), write(tmp_path / "bad", correct=50)
    rules = replace(RULES, primary=metric, metrics=RULES.metrics | {"score": MetricRule("higher", 0.03)})
    decision = by_tasks(good, bad, rules) if better else by_tasks(bad, good, rules)
    assert decision.passed is better
    word = "better" if better else "worse"
    assert {row.verdict for row in decision.table} == {word}
    assert any(f"{metric} is significantly {word}: " in reason for reason in decision.reasons)
    (row,) = (row for row in decision.table if row.metric == metric)
    assert row.interval.low - 1e-9 <= row.difference <= row.interval.high + 1e-9
    assert (row.interval.low > 0) == (row.difference > 0)


def test_gate_tolerance_of_metrics_beside_the_primary(tmp_path):
    champion = write(tmp_path / "champion", correct=53)
    for correct, turn, verdict in [
        (50, 0, "worse within its tolerance"),
        (49, 0, "worse, perhaps within its tolerance"),
        (47, 40, "worse, perhaps by chance"),
        (33, 0, "worse"),
    ]:
        decision = judge(write(tmp_path / f"{correct}", nats=-0.1, correct=correct, turn=turn), champion)
        assert decision.table[1].verdict == verdict
        assert decision.passed is (verdict != "worse")
    assert decision.reasons == ["era/score: worse by 0.2; the tolerance is 0.03"]


def test_gate_refuses_differences_by_chance(tmp_path):
    """52 of 100 right instead of 50, and on other examples: as likely luck."""
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    decision = by_tasks(with_tasks(tmp_path / "new", "bits_per_byte", 52, 62, turn=30), champion)
    assert not decision.passed
    assert verdicts(decision)["score"] == "better, perhaps by chance"
    (reason,) = decision.reasons
    (row,) = (row for row in decision.table if row.metric == "score")
    assert reason.startswith("score is not significantly better: +0.02, 98.46% interval -0.")
    assert f"(a difference of about {row.strict.half:.2g} could have been detected)" in reason
    assert reason.endswith("it may be worse by more than promotion.margin = 0.01")


def test_gate_groups_paragraphs_by_document(tmp_path):
    """20 more of 100 paragraphs right, all of them of two documents: two fair coins explain that."""
    for paragraphs, passed in [(0, True), (1, True), (10, False)]:
        sides = [
            with_tasks(tmp_path / f"{right}-{paragraphs}", "bits_per_byte", right, right, paragraphs=paragraphs)
            for right in (70, 50)
        ]
        decision = by_tasks(*sides)
        assert decision.passed is passed
        assert verdicts(decision)["score"] == "better"
    # Where the two sides have different groups, the larger ones hold for both.
    assert not by_tasks(tmp_path / "70-10", tmp_path / "50-0").passed
    assert not by_tasks(tmp_path / "70-0", tmp_path / "50-10").passed


@pytest.mark.parametrize(("documents", "verdict"), [(5, "tells nothing"), (6, "better, perhaps by chance")])
def test_gate_leaves_out_tasks_with_too_few_groups(tmp_path, documents, verdict):
    sides = []
    for name, right in (("new", 90), ("old", 50)):
        write(tmp_path / name, correct=right)
        sides.append(write(tmp_path / name, correct=right, task="next", size=120, paragraphs=120 // documents))
    decision = by_tasks(*sides)
    rows = {row.metric: row for row in decision.table}
    silent = verdict == "tells nothing"
    assert rows["next/score"].verdict == verdict
    assert (rows["next/score"].interval is None) == silent
    assert rows["score"].difference == pytest.approx(0.4 if silent else (0.4 + 40 / 120) / 2)
    few = "5 groups of examples; at least 6 are needed at promotion.alpha = 0.05"
    assert rows["score"].note == (f"without next/score ({few})" if silent else "")
    assert decision.passed


def test_gate_leaves_out_unlearned_tasks(tmp_path):
    """Four classes, as often each: a quarter is right whatever is read."""
    sides = [with_tasks(tmp_path / name, "bits_per_byte", right, 28) for name, right in (("new", 70), ("old", 50))]
    rows = {row.metric: row for row in by_tasks(*sides).table}
    assert rows["score"].difference == pytest.approx(0.2)
    assert rows["score"].note == "without next/score (neither model is significantly better than a constant answer)"
    learned = with_tasks(tmp_path / "learned", "bits_per_byte", 70, 50)
    assert by_tasks(learned, sides[1]).table[0].difference == pytest.approx((0.2 + 0.22) / 2)


@pytest.mark.parametrize(
    ("name", "right", "quantity", "nats", "passed", "says"),
    [
        ("era", (25, 26), "bits_per_byte", -0.1, True, "bits_per_byte is significantly better"),
        ("era", (25, 26), "bits_per_byte", 0.1, False, "bits_per_byte is significantly worse"),
        ("era", (25, 26), "pseudo_bits_per_byte", 0.0, False, "score: tells nothing, and is promotion.primary: withou"),
        ("pairs", (80, 79), "bits_per_byte", -0.1, True, "bits_per_byte is significantly better"),
        ("pairs", (80, 95), "bits_per_byte", 0.1, False, "bits_per_byte is significantly worse"),
        ("pairs", (80, 50), "bits_per_byte", -0.1, False, "pairs/score: worse by 0.3"),
        ("pairs", (80, 95), "pseudo_bits_per_byte", 0.1, True, "score is significantly better"),
    ],
)
def test_gate_primary_falls_back_to_a_common_likelihood(tmp_path, name, right, quantity, nats, passed, says):
    """A hundred pairs tell less than all of the text; of models with other likelihoods they decide."""
    old = write(tmp_path / "old", 0.0, right[0], task=name)
    new = write(tmp_path / "new", nats, right[1], quantity, task=name)
    for folder in (old, new) if name == "pairs" else ():
        rewritten(folder / "pairs.1.csv", as_pair)
    decision = by_tasks(new, old)
    assert decision.passed is passed
    assert [reason for reason in decision.reasons if reason.startswith(says)], decision.reasons


def test_gate_corrects_for_earlier_challengers(tmp_path):
    """10 of 100 more right, none fewer, is a p of 0.002."""
    sides = [with_tasks(tmp_path / name, "bits_per_byte", right, 50) for name, right in (("new", 60), ("old", 50))]
    for before, passed in [(0, True), (5, True), (9, False)]:
        decision = by_tasks(*sides, earlier_challengers=before)
        assert decision.passed is passed
        assert f", {100 - 100 * PAPERS.level(before + 1):.4g}% interval " in decision.reasons[-1]
    # Of eight documents, all of them better, the least p is 2 / 256, whatever the interval says.
    few = [write(tmp_path / name, correct=160, size=160, paragraphs=20) for name in ("all", "half")]
    rewritten(few[1] / "era.1.csv", lambda row: {} if int(row["id"][1:]) % 8 < 4 else {"prediction": "none"})
    for before, passed in [(0, True), (2, False)]:
        decision = by_tasks(*few, earlier_challengers=before)
        assert decision.passed is passed
        assert decision.table[0].strict.low > 0
    assert "; 8 groups of examples, and at least 9 are needed to be significantly better" in decision.reasons[0]
    # Better by 30 points at one task, at the other significantly worse than its tolerance allows.
    for folder, right, left in [("bad", 320, 275), ("good", 200, 300)]:
        write(tmp_path / folder, correct=right, size=400)
        write(tmp_path / folder, correct=left, size=400, task="other")
    for before in (0, 39):
        decision = by_tasks(tmp_path / "bad", tmp_path / "good", earlier_challengers=before)
        assert (decision.passed, decision.reasons) == (False, ["other/score: worse by 0.0625; the tolerance is 0.03"])


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.2])
def test_levels_of_a_year_of_challengers_add_up_to_alpha(alpha):
    """Only the better half of a two-sided level promotes."""
    halves = [replace(RULES, alpha=alpha).level(look) / 2 for look in range(1, 731)]
    assert sum(halves[:365]) == pytest.approx(alpha)
    assert sum(halves[365:]) < 0.11 * alpha
    assert halves == sorted(halves, reverse=True)


def test_a_clear_gain_is_seen_after_a_year_of_challengers(tmp_path):
    """25 of 100 more right, none fewer: p is 6e-8, and the level 4e-5."""
    sides = [with_tasks(tmp_path / name, "bits_per_byte", right, 50) for name, right in (("new", 75), ("old", 50))]
    assert by_tasks(*sides, earlier_challengers=364).passed
    assert not by_tasks(*sides, earlier_challengers=10**6).passed


def test_the_gate_never_sees_the_part_that_is_only_reported(tmp_path):
    """All that the challenger is better at lies there: whole documents, by the hash of their names."""
    old, new = (write(tmp_path / name, correct=150, size=400, paragraphs=10, documents=60) for name in ("old", "new"))
    tables = read_evidence(old, RULES).tables
    judged, apart = tables["era"].parted(0.3)
    assert (judged.groups + apart.groups, len(apart.examples)) == (40, 10 * apart.groups)
    assert sorted([*judged.examples, *apart.examples]) == sorted(tables["era"].examples)
    assert apart.value == pytest.approx(np.mean(np.array(apart.labels) == apart.predictions[0]))
    assert len(apart.labels) == len(apart.predictions[0]) == len(apart.ids) == apart.confidences.shape[1]
    likelihood = tables[LIKELIHOOD].parted(0.2)
    assert 4 < likelihood[1].groups < 20
    assert sum(part.results.nats.sum() for part in likelihood) == pytest.approx(tables[LIKELIHOOD].results.nats.sum())
    hidden = set(apart.ids)
    rewritten(new / "era.1.csv", lambda row: {"prediction": row["label"]} if row["id"] in hidden else {})
    for share, difference in [(0.0, True), (0.3, False)]:
        (row,) = (row for row in judge(new, old, replace(RULES, reported=share)).table if row.metric == "era/score")
        assert (row.difference > 0) == difference
    few = read_evidence(write(tmp_path / "few", size=290, paragraphs=10), RULES).tables["era"]
    assert (few.groups, few.parted(0.5)) == (29, (few, None))


def test_gate_passes_an_equal_model_only_when_cheaper(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    same = by_tasks(champion, champion)
    assert not same.passed
    assert same.reasons[0].endswith("and the model is not cheaper: 1,000 parameters, the champion's 1,000")
    assert not by_tasks(with_tasks(tmp_path / "1001", "bits_per_byte", 50, 60, parameters=1001), champion).passed
    cheaper = by_tasks(with_tasks(tmp_path / "999", "bits_per_byte", 50, 60, parameters=999), champion)
    assert (cheaper.passed, cheaper.examples_differ) == (True, [])
    assert cheaper.reasons == [
        "score is not worse by more than promotion.margin = 0.01: +0, 98.46% interval +0 to +0, p = 1, and the model "
        "is cheaper: 999 parameters, the champion's 1,000; no metric is significantly worse than its tolerance allows"
    ]
    # If the cost would decide and is not known, it is asked for; where it would not, it is not.
    for folder in ("old", "999"):
        (tmp_path / folder / "cost.csv").rename(tmp_path / "cost")
        decision = by_tasks(tmp_path / "999", champion)
        assert (decision.passed, decision.examples_differ) == (False, ["cost.csv"])
        (tmp_path / "cost").rename(tmp_path / folder / "cost.csv")
    (champion / "cost.csv").unlink()
    assert by_tasks(with_tasks(tmp_path / "better", "bits_per_byte", 90, 90), champion).examples_differ == []


@pytest.mark.parametrize(("margin", "passed"), [(0.03, True), (0.01, False), (0.0, False)])
def test_gate_passes_a_cheaper_model_only_within_the_margin(tmp_path, margin, passed):
    """One more example of 200 wrong: the interval reaches from 0.015 worse to 0."""
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 51, 60)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 50, 60, parameters=10)
    assert by_tasks(challenger, champion, replace(PAPERS, margin=margin)).passed is passed
    loose = replace(PAPERS, margin=0.5)
    lost = by_tasks(with_tasks(tmp_path / "lost", "bits_per_byte", 70, 40, parameters=10), champion, loose)
    assert lost.reasons == ["next/score: worse by 0.2; the tolerance is 0.03"]


def test_gate_refuses_values_that_are_not_finite(tmp_path):
    whole = write(tmp_path / "whole")
    for value in (math.nan, math.inf):
        broken = write(tmp_path / f"{value}", value)
        first = decide(read_evidence(broken, RULES), None, RULES)
        assert first.reasons == judge(broken, whole).reasons == ["bits_per_byte: not a finite number"]
        assert not any(decision.passed for decision in (first, judge(broken, whole), judge(whole, broken)))
    # Nor where it is no primary, and whatever the champion has.
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 90, 90, nats=math.nan)
    for quantity in ("bits_per_byte", "pseudo_bits_per_byte"):
        champion = with_tasks(tmp_path / quantity, quantity, 50, 60)
        assert by_tasks(challenger, champion).reasons == ["pseudo_bits_per_byte: not a finite number"]


def test_gate_never_compares_likelihoods_of_different_names(tmp_path):
    causal = write(tmp_path / "causal")
    masked = write(tmp_path / "masked", nats=-0.9, quantity="pseudo_bits_per_byte")
    for challenger, champion, verdict in [
        (masked, causal, "not measured"),
        (causal, masked, "not comparable"),
        (masked, masked, "not measured"),
        (masked, None, "not measured"),
    ]:
        decision = decide(read_evidence(challenger, RULES), champion and read_evidence(champion, RULES), RULES)
        assert not decision.passed
        (reason,) = decision.reasons
        assert reason.startswith(f"bits_per_byte: {verdict}, and is promotion.primary: the challenger's")
        assert "excerpts" not in reason


def test_gate_judges_another_architecture_by_its_scores(tmp_path):
    causal = with_tasks(tmp_path / "causal", "bits_per_byte", 50, 60)
    masked = with_tasks(tmp_path / "masked", "pseudo_bits_per_byte", 49, 80, nats=9.0)
    decision = by_tasks(masked, causal)
    assert decision.passed
    (reason,) = decision.reasons
    assert reason.startswith("score is significantly better: +0.095, 98.46% interval +0.049")
    assert reason.endswith("; no metric is significantly worse than its tolerance allows")
    assert verdicts(decision) == dict.fromkeys(COMPARED, "not measured") | {
        "score": "better",
        "era/score": "worse within its tolerance",
        "next/score": "better",
        "pseudo_bits_per_byte": "not comparable",
    }
    shown = {row.metric: (row.champion, row.challenger) for row in decision.table}
    assert shown["score"] == pytest.approx((0.55, 0.645))
    assert shown["bits_per_byte"] == (pytest.approx(12.66 / math.log(2) / 120), None)
    assert shown["pseudo_bits_per_byte"] == (None, pytest.approx(120.66 / math.log(2) / 120))
    back = by_tasks(causal, masked)
    assert back.reasons[-1].startswith("score is significantly worse: -0.095")
    assert verdicts(back)["bits_per_byte"] == "not comparable"


def answers(folder, given, labels, score="accuracy"):
    """An evidence folder of one task and one seed, with these predictions and labels."""
    folder.mkdir()
    rows = [(f"e{i}", f"s{i}", "", *pair, score, "r") for i, pair in enumerate(zip(labels, given, strict=True))]
    with (folder / "era.1.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "sha256", "subset", "label", "prediction", "score", "measured"), *rows])
    return folder


def test_gate_judges_a_task_by_several_scores(tmp_path):
    """One says the frequent class always: as often right as the other, which finds the rare one, too."""
    labels = ["often"] * 180 + ["rarely"] * 20
    lazy = answers(tmp_path / "lazy", ["often"] * 200, labels)
    able = answers(tmp_path / "able", ["often"] * 160 + ["rarely"] * 40, labels)
    metrics = {name: MetricRule("higher", 0.02) for name in ("era/score", "era/macro_f1", "era/f1:rarely+matthews")}
    rules = replace(RULES, primary="era/score", margin=0.05, metrics=metrics)
    decision = judge(lazy, able, rules)
    assert not decision.passed
    assert verdicts(decision) == {"era/score": "equal", "era/macro_f1": "worse", "era/f1:rarely+matthews": "worse"}
    shown = {row.metric: (row.champion, row.challenger) for row in decision.table}
    assert shown["era/macro_f1"] == pytest.approx(((160 / 170 + 20 / 30) / 2, (180 / 190) / 2))
    # To say the frequent class always is as good by accuracy, and by no other score.
    assert [bool(row.note) for row in decision.table] == [True, False, False]
    by_macro = judge(able, lazy, replace(rules, primary="era/macro_f1"))
    assert by_macro.reasons[0].startswith("era/macro_f1 is significantly better: +0.3")
    # What `score` is the mean of are the tasks' own scores only.
    both = replace(PAPERS, metrics={"score": MetricRule("higher", 0.0), **metrics})
    assert both.for_evidence(able).tasks() == ["era/score"]


@pytest.mark.parametrize(
    ("given", "labels", "own", "other"),
    [
        (["red car", "blue"], ['["a red car"]', '["blue", "sky"]'], "exact_match", "exact_match+answer_f1"),
        (["1.5", "2", "4"], ["1", "2", "3"], "pearson", "spearman"),
    ],
)
def test_gate_answers_by_another_score_match_its_evidence(tmp_path, given, labels, own, other):
    table, expected = (
        read_task([answers(tmp_path / score, given, labels, score) / "era.1.csv"]) for score in (own, other)
    )
    by = table.by(other)
    assert (by.metric, by.value) == (f"era/{other}", expected.value)
    assert np.array_equal(by.results.columns, expected.results.columns)


def test_gate_refuses_a_score_that_a_task_does_not_have(tmp_path):
    folder = answers(tmp_path / "a", ["x", "y"], ["x", "y"])
    for score, says in (
        ("pearson", r"^promotion\.metrics\.era/pearson: measures numbers, and the answers are classes"),
        ("f1:z", r"^promotion\.metrics\.era/f1:z: no label is 'z', whose F1 is the score; expected it among x, y"),
    ):
        rules = replace(RULES, primary=f"era/{score}", metrics={f"era/{score}": MetricRule("higher", 0.0)})
        with pytest.raises(UserError, match=says):
            judge(folder, folder, rules)


def test_gate_judges_the_mean_over_seeds(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60, seeds=3)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 70, 80, seeds=2)
    assert by_tasks(challenger, champion).passed
    assert not by_tasks(champion, challenger).passed
    lucky = with_tasks(tmp_path / "lucky", "bits_per_byte", 50, 60, seeds=2)
    for task in ("era", "next"):
        rewritten(lucky / f"{task}.2.csv", lambda row: {"prediction": row["label"]})
    assert read_evidence(lucky, PAPERS.for_evidence(lucky)).tables["era"].value == pytest.approx((0.5 + 1) / 2)
    decision = by_tasks(lucky, champion)
    assert not decision.passed
    assert decision.reasons[0].startswith("score is not significantly better: +0.225, 98.46% interval -")
    assert "p = 0.0001 " in decision.reasons[0]


def test_gate_passes_the_first_model(tmp_path):
    for quantity in COMPARED:
        folder = with_tasks(tmp_path / quantity, quantity, 50, 60)
        rules = PAPERS.for_evidence(folder)
        decision = decide(read_evidence(folder, rules), None, rules)
        assert decision.passed
        assert verdicts(decision)[quantity] == "no champion"


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"documents": 11}, ["likelihood.csv"]),
        ({"last_text": "other"}, ["likelihood.csv"]),
        ({"rule": "another"}, ["era.1.csv", "likelihood.csv"]),
    ],
)
def test_gate_refuses_evidence_of_other_examples_or_rules(tmp_path, change, differing):
    decision = judge(write(tmp_path / "a", nats=-0.5), write(tmp_path / "b", **change))
    assert (decision.passed, decision.examples_differ, decision.table) == (False, differing, [])


def test_gate_compares_examples_of_used_metrics_only(tmp_path):
    """An excerpt has fewer bytes than a document: no reason to evaluate a champion of another quantity again."""
    causal = with_tasks(tmp_path / "causal", "bits_per_byte", 50, 60, seeds=2)
    masked = with_tasks(tmp_path / "masked", "pseudo_bits_per_byte", 71, 81, documents=3, seeds=2)
    shorter = with_tasks(tmp_path / "shorter", "bits_per_byte", 51, 61, documents=3, seeds=2)
    assert by_tasks(masked, causal).passed
    assert by_tasks(shorter, causal).examples_differ == ["likelihood.csv"]
    for seed in (1, 2):
        rewritten(masked / f"era.{seed}.csv", lambda row: {"score": "matthews"})
    decision = by_tasks(masked, causal)
    assert (decision.examples_differ, decision.table) == (["era.1.csv", "era.2.csv"], [])


def test_gate_never_compares_excerpts_of_other_lengths(tmp_path):
    """The first 128 tokens of a document are other bytes for another tokenizer, however often they are evaluated."""
    champion = with_tasks(tmp_path / "old", "pseudo_bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 71, 81, nats=9.0)
    rewritten(challenger / "likelihood.csv", lambda row: {"bytes": 9 if row["id"] == "1" else 10})
    rules = PAPERS.for_evidence(challenger)
    decision = judge(challenger, champion, rules)
    assert (decision.passed, decision.examples_differ) == (True, ["likelihood.csv"])
    assert verdicts(decision)["pseudo_bits_per_byte"] == "not comparable"
    by_likelihood = judge(challenger, champion, replace(rules, primary="pseudo_bits_per_byte"))
    assert (by_likelihood.passed, by_likelihood.examples_differ) == (False, ["likelihood.csv"])
    assert by_likelihood.reasons[0].startswith("pseudo_bits_per_byte: not comparable, and is promotion.primary: ")
    (champion / "next.1.csv").unlink()
    assert judge(challenger, champion, rules).table == []


@pytest.mark.parametrize(
    ("nats", "passed", "verdict"),
    [(0.2, False, "worse"), (0.01, True, "worse within its tolerance"), (-1, True, "better")],
)
def test_gate_takes_a_missing_likelihood_of_an_earlier_champion(tmp_path, nats, passed, verdict):
    champion = with_tasks(tmp_path / "champion", "pseudo_bits_per_byte", 50, 60, nats=9.0)
    challenger = with_tasks(tmp_path / "challenger", "bits_per_byte", 71, 81, nats=nats)
    earlier = with_tasks(tmp_path / "earlier", "bits_per_byte", 90, 90)
    rules = PAPERS.for_evidence(challenger)
    alone = judge(challenger, champion, rules)
    sides = [read_evidence(folder, rules) for folder in (challenger, earlier)]
    both = also_against(alone, sides[0], "1", sides[1], rules)
    assert (alone.passed, both.passed, both.table[:-1]) == (True, passed, alone.table)
    assert (both.table[-1].verdict, both.table[-1].earlier) == (verdict, "1")
    assert both.reasons[-1].endswith("compared with version 1, the last champion that has a bits_per_byte")
    lost = also_against(alone, sides[0], "1", Evidence({}), rules)
    assert (lost.passed, lost.earlier_differs) == (True, ["likelihood.csv"])
    assert lost.reasons[-1].startswith("bits_per_byte: not comparable; compared with version 1")


@pytest.mark.parametrize(("forgotten", "passed", "verdict"), [(0.3, False, "worse"), (0.0, True, "equal")])
def test_gate_refuses_what_has_forgotten_old_text(tmp_path, forgotten, passed, verdict):
    """Ten old documents, and twenty new ones that the challenger has learned."""
    champion, challenger = (write(tmp_path / name, documents=30) for name in ("champion", "challenger"))
    change = [forgotten] * 10 + [-0.9] * 20
    rewritten(challenger / "likelihood.csv", lambda row: {"nats": float(row["nats"]) + change[int(row["id"])]})
    registered = write(tmp_path / "registered", documents=10, nats=2.0, rule="an older one")
    sides = [read_evidence(folder, RULES) for folder in (challenger, champion)]
    whole = judge(challenger, champion)
    tables = [read_evidence(folder, RULES).tables[LIKELIHOOD] for folder in (registered, champion)]
    decision, same = (also_on_old_text(whole, *sides, table, RULES) for table in tables)
    assert (whole.passed, decision.passed, decision.table[:-1]) == (True, passed, whole.table)
    row = decision.table[-1]
    assert (row.metric, row.verdict, row.examples) == ("bits_per_byte on old text", verdict, 10)
    assert row.difference == pytest.approx(forgotten / 10 / math.log(2))
    judged = "worse by 0.04328; the tolerance is 0" if forgotten else "equal"
    counted = "(10 of 30 documents, which the champion was registered with)"
    assert decision.reasons[-1] == f"bits_per_byte on old text: {judged} {counted}"
    assert same is whole  # all documents are old


@pytest.mark.parametrize("quantity", COMPARED)
def test_gate_primary_is_the_likelihood_without_tasks(tmp_path, quantity):
    champion, challenger = (write(tmp_path / name, nats, quantity=quantity) for name, nats in [("a", 0.0), ("b", -0.1)])
    for folder in (champion, challenger):
        (folder / "era.1.csv").unlink()
    rules = PAPERS.for_evidence(challenger)
    assert (rules.primary, list(rules.metrics)) == (quantity, list(COMPARED))
    assert judge(challenger, champion, rules).passed
    assert not judge(champion, challenger, rules).passed
    unruled = replace(PAPERS, metrics={"score": PAPERS.metrics["score"]})
    with pytest.raises(UserError, match=rf"^promotion.primary: score, but no task was measured, and {quantity} has no"):
        unruled.for_evidence(challenger)


def test_gate_compares_lossy_likelihoods_of_one_tokenizer_only(tmp_path):
    better = write(tmp_path / "challenger", -0.9, 80, "lossy_bits_per_byte of 3fb1")
    worse = write(tmp_path / "champion", 0.0, 50, "lossy_bits_per_byte of 3fb1")
    assert verdicts(by_tasks(better, worse))["bits_per_byte"] == "better"
    other = write(tmp_path / "other", 0.0, 50, "lossy_bits_per_byte of 07aa")
    for challenger, champion, passed in ((better, other, True), (other, better, False)):
        decision = by_tasks(challenger, champion)
        assert decision.passed is passed
        assert verdicts(decision)["bits_per_byte"] == "not comparable"
        assert {verdicts(decision)[name] for name in COMPARED} == {"not measured", "not comparable"}


def test_gate_names_missing_evidence(tmp_path):
    folder = write(tmp_path)
    (folder / "era.1.csv").unlink()
    with pytest.raises(UserError, match=r"era\.1\.csv: missing; expected it for promotion\.metrics: era/score"):
        read_evidence(folder, RULES)
    with pytest.raises(UserError, match="the challenger's evidence lacks era"):
        decide(read_evidence(folder, RULES, partial=True), None, RULES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"margin": -0.1}, r"promotion\.margin: found -0\.1; expected at least 0"),
        ({"primary": "loss"}, "promotion.primary: found 'loss'"),
        (
            {"metrics": {"bits_per_byte": {"direction": "higher", "tolerance": 0.0}}},
            "byte.direction: found higher; exp",
        ),
        ({"primary": "f1", "metrics": {"f1": {"direction": "lower", "tolerance": 0.0}}}, "metrics.f1: unknown"),
        (
            {"primary": "era/macrof1", "metrics": {"era/macrof1": {"direction": "higher", "tolerance": 0.0}}},
            r"metrics\.era/macrof1: score: found 'macrof1'; expected accuracy, f1:<class>",
        ),
    ],
)
def test_gate_rules_are_read_strictly(change, message):
    rules = {"primary": "bits_per_byte", "alpha": 0.05, "margin": 0.0}
    metrics = {"bits_per_byte": {"direction": "lower", "tolerance": 0.0}}
    with pytest.raises(UserError, match=message):
        from_dict(GateRules, rules | {"metrics": metrics} | change, "promotion")


def test_gate_rule_score_is_the_default_of_tasks(tmp_path):
    every, own = MetricRule("higher", 0.03), MetricRule("higher", 0.5)
    rules = GateRules(
        "bits_per_byte", 0.05, 0.0, {"bits_per_byte": MetricRule("lower", 0.0), "score": every, "b/score": own}
    )
    for name in ("likelihood.csv", "cost.csv", "a.1.csv", "a.2.csv", "b.1.csv", "c.csv", "d.x.csv"):
        (tmp_path / name).touch()
    written_out = rules.for_evidence(tmp_path)
    assert written_out.metrics == {"bits_per_byte": MetricRule("lower", 0.0), "a/score": every, "b/score": own}
    assert written_out.for_evidence(tmp_path) == written_out
    mean = replace(rules, primary="score").for_evidence(tmp_path)
    assert mean.metrics == written_out.metrics | {"score": every}
    assert (mean.tasks(), mean.sources()) == (["a/score", "b/score"], ["a", "b", "likelihood.csv"])


# Simulated models: how often the gate errs, and what it never does.

TASKS = ("cola", "rte", "sst2")
SIMULATED = replace(
    PAPERS,
    metrics={f"{task}/score": MetricRule("higher", 0.03) for task in TASKS}
    | {"score": MetricRule("higher", 0.03), "bits_per_byte": MetricRule("lower", 0.02)},
)


def simulated(seed, gain, seeds=1, size=240):
    """A champion and a challenger that is right more often by ``gain``, on tasks of documents that each model likes
    more or less; they know each document a little."""
    rng = np.random.default_rng(seed)
    sides = ({}, {})
    for task in TASKS:
        labels, groups, hard = rng.integers(0, 2, size), np.arange(size) // 5, rng.normal(size=size)
        for tables, more in zip(sides, (0.0, gain), strict=True):
            liked = rng.normal(size=size)[groups] / 2
            right = rng.normal(size=(seeds, size)) + hard + liked > -0.8 - 4 * more
            whole = {"strata": np.zeros(size, int), "classes": ("a", "b"), "subsets": ("",), "groups": groups}
            results = Answers("accuracy", labels, np.where(right, labels, 1 - labels), **whole)
            examples = tuple((f"{i}", "", "", "") for i in range(size))
            tables[task] = Table(examples, f"{task}/score", score_by_subset(results)[""], results)
    surprise = rng.uniform(1, 2, 40)
    for tables, more in zip(sides, (0.0, gain), strict=True):
        nats = Sums(100 * surprise * (1 - more) + rng.normal(size=40), np.full(40, 100.0))
        documents = tuple((f"{i}", "", "", "") for i in range(40))
        tables[LIKELIHOOD] = Table(documents, "bits_per_byte", score_by_subset(nats)[""], nats)
    return [Evidence(tables, 1.0) for tables in sides]


@pytest.mark.parametrize("seeds", [1, 3])
def test_gate_error_rates_of_equal_and_better_challengers(seeds):
    """At 5 %, two-sided, one of 40 equal ones is expected to be better by chance: of 120 three, more than eight once in
    a hundred."""
    passes = {}
    for gain, times in ((0.0, 120), (0.1, 30)):
        pairs = (simulated(seed, gain, seeds) for seed in range(times))
        passes[gain] = sum(decide(new, old, SIMULATED, 300).passed for old, new in pairs)
    assert passes[0.0] <= 8
    assert passes[0.1] >= 27


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 9999),
    st.sampled_from([-0.1, -0.02, 0.0, 0.02, 0.1]),
    st.sampled_from([1, 2]),
    st.sampled_from([0.0, 0.05]),
    st.integers(0, 30),
    st.booleans(),
)
def test_gate_decision_invariants(seed, gain, seeds, margin, earlier_challengers, cheaper):
    old, new = simulated(seed, gain, seeds, size=120)
    new = replace(new, parameters=0.5 if cheaper else 1.0)
    rules = replace(SIMULATED, margin=margin)
    there, back = decide(new, old, rules, 100, earlier_challengers), decide(old, new, rules, 100, earlier_challengers)
    # Of two models at most one is better than the other, and cheaper.
    assert not (there.passed and back.passed and margin == 0)
    assert not (back.passed and not any("better" in reason for reason in back.reasons))
    # Whoever passes would have passed before others asked, and nothing speaks against it.
    assert not there.passed or decide(new, old, rules, 100).passed
    assert not there.passed or not {"worse", "not finite", *UNJUDGED} & set(verdicts(there).values())
    for row, other in zip(there.table, back.table, strict=True):
        if row.metric != "score":  # which tasks it is the mean of depends on the draws
            assert row.difference == -other.difference
            assert (row.verdict == "equal") == (other.verdict == "equal")
        assert not row.interval or row.strict.low <= row.interval.low <= row.interval.high <= row.strict.high
