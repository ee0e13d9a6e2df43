"""The gate promotes the better model, never the worse, and never compares what cannot be compared."""

import csv
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.evaluation.evidence import COMPARED, read_task
from plm_core.evaluation.gate import UNJUDGED, Evidence, also_against, decide, read_evidence
from plm_core.evaluation.rules import GateRules, MetricRule

RULES = GateRules(
    primary="bits_per_byte",
    alpha=0.05,
    margin=0.0,
    metrics={"bits_per_byte": MetricRule("lower", 0.0), "era/score": MetricRule("higher", 0.03)},
)
LIKELIHOOD_AND_WNLI = {"bits_per_byte": MetricRule("lower", 0.0), "wnli/score": MetricRule("higher", 0.03)}
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
    shuffle=None,
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
    each = [(i, f"{i}" if i else last_text, 10, 7, 1 + nats + 0.01 * i, quantity, rule) for i in range(documents)]
    files = {"likelihood": [("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured"), *each]}
    for seed in range(1, seeds + 1):
        examples = [
            (f"e{i}", f"sha{i}", "", f"era{i % 4}", f"era{(i + wrong) % 4}", "accuracy", rule)
            for i in range(size)
            for wrong in [(i - turn) % size >= correct]
        ]
        header = ("id", "sha256", "subset", "label", "prediction", "score", "measured")
        files[f"{task}.{seed}"] = [header, *examples]
        if paragraphs:
            groups = ["group", *(f"d{i // paragraphs}" for i in range(size))]
            named = zip(files[f"{task}.{seed}"], groups, strict=True)
            files[f"{task}.{seed}"] = [(*row, group) for row, group in named]
    files["cost"] = [("quantity", "value"), ("parameters", parameters)]
    for name, rows in files.items():
        if shuffle is not None:
            rows[1:] = random.Random(shuffle).sample(rows[1:], len(rows) - 1)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return folder


def with_tasks(folder, quantity, era, following, nats=0.0, **how):
    """An evidence folder with two tasks, of whose examples so many are right."""
    write(folder, nats, era, quantity, **how)
    return write(folder, nats, following, quantity, task="next", **how)


def all_right(path):
    """Give every example of a seed its right answer."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *((*row[:4], row[3], *row[5:]) for row in rows)])


def verdicts(decision):
    return {row.metric: row.verdict for row in decision.table}


def judge(challenger, champion, rules=RULES, asked=0):
    evidence = read_evidence(challenger, rules), read_evidence(champion, rules, partial=True)
    return decide(*evidence, rules, asked=asked)


def by_tasks(challenger, champion, rules=PAPERS):
    return judge(challenger, champion, rules.for_evidence(challenger))


@pytest.mark.parametrize("metric", ["bits_per_byte", "era/score", "score"])
@pytest.mark.parametrize("better", [True, False])
def test_the_better_model_wins_and_the_worse_is_refused_on_every_metric(tmp_path, metric, better):
    good, bad = write(tmp_path / "good", nats=-0.1, correct=70), write(tmp_path / "bad", correct=50)
    rules = replace(RULES, primary=metric, metrics=RULES.metrics | {"score": MetricRule("higher", 0.03)})
    decision = by_tasks(good, bad, rules) if better else by_tasks(bad, good, rules)
    assert decision.passed is better
    assert {row.verdict for row in decision.table} == {"better" if better else "worse"}
    word = "better" if better else "worse"
    assert any(f"{metric} is significantly {word}: " in reason for reason in decision.reasons)
    (row,) = (row for row in decision.table if row.metric == metric)
    assert row.interval.low - 1e-9 <= row.difference <= row.interval.high + 1e-9
    assert (row.interval.low > 0) == (row.difference > 0)


def test_a_metric_beside_the_primary_may_worsen_by_its_tolerance_and_no_more(tmp_path):
    champion = write(tmp_path / "champion", correct=53)
    within = judge(write(tmp_path / "within", nats=-0.1, correct=50), champion)
    perhaps = judge(write(tmp_path / "perhaps", nats=-0.1, correct=49), champion)
    beyond = judge(write(tmp_path / "beyond", nats=-0.1, correct=33), champion)
    assert within.passed
    assert within.table[1].verdict == "worse within its tolerance"
    assert perhaps.passed
    assert perhaps.table[1].verdict == "worse, perhaps within its tolerance"
    assert beyond.reasons == ["era/score: worse by 0.2; the tolerance is 0.03"]


def test_better_at_random_is_not_better(tmp_path):
    """52 of 100 right instead of 50, and on other examples: as likely luck."""
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    lucky = with_tasks(tmp_path / "new", "bits_per_byte", 52, 62, turn=30)
    decision = by_tasks(lucky, champion)
    assert not decision.passed
    assert verdicts(decision)["score"] == "better, perhaps by chance"
    (reason,) = decision.reasons
    (row,) = (row for row in decision.table if row.metric == "score")
    assert reason.startswith("score is not significantly better: +0.02, 95% interval -0.")
    assert f"(a difference of about {row.interval.half:.2g} could have been detected)" in reason
    assert reason.endswith("it may be worse by more than promotion.margin = 0.01")
    clearly = with_tasks(tmp_path / "clear", "bits_per_byte", 70, 80, turn=10)
    assert by_tasks(clearly, champion).passed


def test_paragraphs_of_one_document_are_no_independent_witnesses(tmp_path):
    """20 more of 100 paragraphs right, all of them of two documents: two fair coins explain that."""
    for paragraphs, passed in [(0, True), (1, True), (10, False)]:
        sides = [
            with_tasks(tmp_path / f"{right}-{paragraphs}", "bits_per_byte", right, right, paragraphs=paragraphs)
            for right in (70, 50)
        ]
        decision = by_tasks(*sides)
        assert decision.passed is passed
        assert verdicts(decision)["score"] == "better"
    # A champion's evidence of before has no groups: those of the challenger hold for both.
    assert not by_tasks(tmp_path / "70-10", tmp_path / "50-0").passed
    assert not by_tasks(tmp_path / "70-0", tmp_path / "50-10").passed


@pytest.mark.parametrize(("documents", "said"), [(5, "tells nothing"), (6, "better, perhaps by chance")])
def test_too_few_groups_tell_nothing_and_leave_the_mean(tmp_path, documents, said):
    sides = []
    for name, right in (("new", 90), ("old", 50)):
        write(tmp_path / name, correct=right)
        sides.append(write(tmp_path / name, correct=right, task="next", size=120, paragraphs=120 // documents))
    decision = by_tasks(*sides)
    rows = {row.metric: row for row in decision.table}
    assert rows["next/score"].verdict == said
    assert (rows["next/score"].interval is None) == (said == "tells nothing")
    both = (0.4 + 40 / 120) / 2
    assert rows["score"].difference == pytest.approx(0.4 if said == "tells nothing" else both)
    few = "5 groups of examples; at least 6 are needed at promotion.alpha = 0.05"
    assert rows["score"].note == (f"without next/score ({few})" if said == "tells nothing" else "")
    assert decision.passed


def test_a_task_that_neither_model_has_learned_leaves_the_mean(tmp_path):
    """Four classes, as often each: a quarter is right whatever is read."""
    sides = [with_tasks(tmp_path / name, "bits_per_byte", right, 28) for name, right in (("new", 70), ("old", 50))]
    decision = by_tasks(*sides)
    rows = {row.metric: row for row in decision.table}
    assert rows["score"].difference == pytest.approx(0.2)
    assert rows["score"].note == "without next/score (neither model is significantly better than a constant answer)"
    assert rows["next/score"].note == "neither model is significantly better than a constant answer"
    one = with_tasks(tmp_path / "one", "bits_per_byte", 70, 50)
    assert by_tasks(one, sides[1]).table[0].difference == pytest.approx((0.2 + 0.22) / 2)


def test_where_no_task_tells_anything_a_likelihood_that_both_have_is_the_primary(tmp_path):
    old = with_tasks(tmp_path / "old", "bits_per_byte", 25, 26)
    for name, quantity, nats, passed, says in [
        ("better", "bits_per_byte", -0.1, True, "bits_per_byte is significantly better"),
        ("worse", "bits_per_byte", 0.1, False, "bits_per_byte is significantly worse"),
        ("other", "pseudo_bits_per_byte", 0.0, False, "score: tells nothing, and is promotion.primary: without era/sc"),
    ]:
        decision = by_tasks(with_tasks(tmp_path / name, quantity, 26, 25, nats), old)
        assert decision.passed is passed
        assert decision.reasons[0].startswith(says)


def with_pairs(folder, quantity, right, nats):
    """An evidence folder with minimal pairs alone, of which so many are right."""
    write(folder, nats, right, quantity, task="pairs")
    path = folder / "pairs.1.csv"
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="") as file:
        rows = ([*row[:3], "good", "good" if row[3] == row[4] else "bad", "pair_accuracy", row[6]] for row in rows)
        csv.writer(file).writerows([header, *rows])
    return folder


def test_where_minimal_pairs_are_the_only_task_a_likelihood_that_both_have_is_the_primary(tmp_path):
    """A hundred pairs tell less than all of the text; of models with other likelihoods they decide."""
    old = with_pairs(tmp_path / "old", "bits_per_byte", 80, 0.0)
    for name, quantity, right, nats, passed, says in [
        ("better", "bits_per_byte", 79, -0.1, True, "bits_per_byte is significantly better"),
        ("worse", "bits_per_byte", 95, 0.1, False, "bits_per_byte is significantly worse"),
        ("unread", "bits_per_byte", 50, -0.1, False, "pairs/score: worse by 0.3"),
        ("other", "pseudo_bits_per_byte", 95, 0.1, True, "score is significantly better"),
        ("other-as-good", "pseudo_bits_per_byte", 80, 0.1, False, "score is not significantly better"),
    ]:
        decision = by_tasks(with_pairs(tmp_path / name, quantity, right, nats), old)
        assert (name, decision.passed) == (name, passed)
        assert [reason for reason in decision.reasons if reason.startswith(says)], decision.reasons


def test_a_loss_that_chance_explains_is_no_objection(tmp_path):
    """Of 71 examples, as WNLI has, 4 points are 3 answers."""
    champion = write(tmp_path / "old", correct=60, size=71, task="wnli")
    for right, worse in [(57, False), (40, True)]:
        challenger = write(tmp_path / f"{right}", -0.1, right, size=71, task="wnli")
        decision = judge(challenger, champion, replace(RULES, metrics=LIKELIHOOD_AND_WNLI))
        assert decision.passed is not worse
        assert verdicts(decision)["wnli/score"] == ("worse" if worse else "worse, perhaps by chance")


def test_who_asks_more_often_needs_more_to_pass(tmp_path):
    """Bonferroni's correction: 10 of 100 more right, none fewer, is a p of 0.002."""
    sides = [with_tasks(tmp_path / name, "bits_per_byte", right, 50) for name, right in (("new", 60), ("old", 50))]
    rules = PAPERS.for_evidence(sides[0])
    for before, passed in [(0, True), (19, True), (49, False)]:
        decision = judge(*sides, rules, before)
        assert decision.passed is passed
        assert f", {100 - 5 / (before + 1):.4g}% interval " in decision.reasons[-1]


def test_what_stands_against_a_challenger_does_so_however_many_were_asked_about_before(tmp_path):
    """Better by 30 points at one task, at the other significantly worse than its tolerance allows, at
    ``promotion.alpha``."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, right, left in [(old, 200, 300), (new, 320, 275)]:
        write(folder, correct=right, size=400)
        write(folder, correct=left, size=400, task="other")
    rules = PAPERS.for_evidence(new)
    for before in (0, 9, 39):
        decision = judge(new, old, rules, before)
        assert verdicts(decision)["other/score"] == "worse"
        assert (decision.passed, decision.reasons) == (False, ["other/score: worse by 0.0625; the tolerance is 0.03"])


def test_the_gate_never_sees_the_part_that_is_only_reported(tmp_path):
    """All that the challenger is better at lies there: whole documents, by the hash of their names."""
    old = write(tmp_path / "old", correct=150, size=400, paragraphs=10)
    (whole,) = (read_evidence(old, RULES).tables["era"],)
    judged, apart = whole.parted(0.3)
    assert (judged.groups + apart.groups, len(judged.examples | apart.examples)) == (40, 400)
    assert judged.examples.isdisjoint(apart.examples)
    assert len(apart.examples) == 10 * apart.groups
    assert apart.value == pytest.approx(np.mean(np.array(apart.labels) == apart.predictions[0]))
    assert len(apart.labels) == len(apart.predictions[0]) == len(apart.ids) == apart.confidences.shape[1]
    new = write(tmp_path / "new", correct=150, size=400, paragraphs=10)
    with (new / "era.1.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    hidden = {example[0] for example in apart.examples}
    with (new / "era.1.csv").open("w", newline="") as file:
        better = [(*row[:4], row[3], *row[5:]) if row[0] in hidden else row for row in rows]
        csv.writer(file).writerows([header, *better])
    for share, difference in [(0.0, True), (0.3, False)]:
        rules = replace(RULES, reported=share)
        (row,) = (row for row in judge(new, old, rules).table if row.metric == "era/score")
        assert (row.difference > 0) == difference


def test_nothing_is_kept_from_the_gate_where_there_is_little(tmp_path):
    table = read_evidence(write(tmp_path, size=290, paragraphs=10), RULES).tables["era"]
    assert table.groups == 29
    assert table.ids is table.ids, "sorted for each of many examples it would take minutes"
    assert table.parted(0.5) == (table, None)
    documents = read_evidence(write(tmp_path / "many", documents=60), RULES).tables["likelihood.csv"]
    judged, apart = documents.parted(0.2)
    assert judged.groups + apart.groups == 60
    assert 4 < apart.groups < 20
    assert judged.results.nats.sum() + apart.results.nats.sum() == pytest.approx(documents.results.nats.sum())


def test_an_equal_model_is_refused_and_an_equal_one_that_is_cheaper_passes(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    same = by_tasks(champion, champion)
    assert not same.passed
    assert same.reasons[0].endswith("and the model is not cheaper: 1,000 parameters, the champion's 1,000")
    for parameters, passed in [(999, True), (1001, False)]:
        challenger = with_tasks(tmp_path / f"{parameters}", "bits_per_byte", 50, 60, parameters=parameters)
        decision = by_tasks(challenger, champion)
        assert decision.passed is passed
        assert decision.examples_differ == []
    cheaper = by_tasks(tmp_path / "999", champion).reasons
    assert cheaper == [
        "score is not worse by more than promotion.margin = 0.01: +0, 95% interval +0 to +0, p = 1, and the model is "
        "cheaper: 999 parameters, the champion's 1,000; no metric is significantly worse than its tolerance allows"
    ]


@pytest.mark.parametrize(("margin", "passed"), [(0.03, True), (0.01, False), (0.005, False), (0.0, False)])
def test_cheaper_passes_only_when_it_is_shown_to_be_within_the_margin(tmp_path, margin, passed):
    """One more example of 200 wrong: the interval reaches from 0.015 worse to 0."""
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 51, 60)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 50, 60, parameters=10)
    assert by_tasks(challenger, champion, replace(PAPERS, margin=margin)).passed is passed


def test_cheaper_saves_no_model_that_lost_too_much_at_one_task(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 70, 40, parameters=10)
    decision = by_tasks(challenger, champion, replace(PAPERS, margin=0.5))
    assert decision.reasons == ["next/score: worse by 0.2; the tolerance is 0.03"]


@pytest.mark.parametrize("side", ["old", "new"])
def test_where_the_cost_would_decide_and_is_not_known_it_is_asked_for(tmp_path, side):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 50, 60, parameters=10)
    (tmp_path / side / "cost.csv").unlink()
    decision = by_tasks(challenger, champion)
    assert not decision.passed
    assert decision.examples_differ == ["cost.csv"]
    better = with_tasks(tmp_path / "better", "bits_per_byte", 90, 90)
    (better / "cost.csv").unlink()
    assert by_tasks(better, champion).examples_differ == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_finite_number_never_passes(tmp_path, value):
    sides = [write(tmp_path / f"{nats}", nats) for nats in (value, 0.0)]
    first = decide(read_evidence(sides[0], RULES), None, RULES)
    assert first.reasons == judge(*sides).reasons == ["bits_per_byte: not a finite number"]
    assert not first.passed
    assert not judge(*sides).passed
    assert not judge(sides[1], sides[0]).passed


def test_likelihoods_of_different_names_are_never_compared(tmp_path):
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
        assert len(decision.reasons) == 1
        assert decision.reasons[0].startswith(f"bits_per_byte: {verdict}, and is promotion.primary: the challenger's")
        assert "excerpts" not in decision.reasons[0]


def test_a_model_of_another_paper_is_judged_by_its_scores(tmp_path):
    causal = with_tasks(tmp_path / "causal", "bits_per_byte", 50, 60)
    masked = with_tasks(tmp_path / "masked", "pseudo_bits_per_byte", 49, 80, nats=9.0)
    decision = by_tasks(masked, causal)
    assert decision.passed
    (reason,) = decision.reasons
    assert reason.startswith("score is significantly better: +0.095, 95% interval +0.05")
    assert reason.endswith("; no metric is significantly worse than its tolerance allows")
    assert verdicts(decision) == {
        "score": "better",
        "era/score": "worse within its tolerance",
        "next/score": "better",
        "bits_per_byte": "not measured",
        "pseudo_bits_per_byte": "not comparable",
        "fixed_order_bits_per_byte": "not measured",
        "generator_pseudo_bits_per_byte": "not measured",
    }
    shown = {row.metric: (row.champion, row.challenger) for row in decision.table}
    assert shown["score"] == pytest.approx((0.55, 0.645))
    assert shown["bits_per_byte"] == (pytest.approx(12.66 / math.log(2) / 120), None)
    assert shown["pseudo_bits_per_byte"] == (None, pytest.approx(120.66 / math.log(2) / 120))
    assert shown["fixed_order_bits_per_byte"] == (None, None)
    back = by_tasks(causal, masked)
    assert back.reasons[-1].startswith("score is significantly worse: -0.095")
    assert verdicts(back)["bits_per_byte"] == "not comparable"


@pytest.mark.parametrize(("nats", "passed"), [(0.1, True), (-0.5, True), (0.15, False)])
def test_a_model_of_the_same_paper_is_judged_by_its_likelihood_as_well(tmp_path, nats, passed):
    """0.02 bits a byte of 10 bytes are 0.14 nats a document."""
    champion = with_tasks(tmp_path / "old", "fixed_order_bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "fixed_order_bits_per_byte", 70, 60, nats=nats)
    decision = by_tasks(challenger, champion)
    assert decision.passed is passed
    assert verdicts(decision)["bits_per_byte"] == "not measured"
    if not passed:
        assert decision.reasons == ["fixed_order_bits_per_byte: worse by 0.02164; the tolerance is 0.02"]


def answers(folder, said, true, score="accuracy", task="era"):
    """An evidence folder of one task and one seed, with these predictions and labels."""
    folder.mkdir()
    rows = [
        (f"e{i}", f"s{i}", "", label, guess, score, "r")
        for i, (guess, label) in enumerate(zip(said, true, strict=True))
    ]
    with (folder / f"{task}.1.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "sha256", "subset", "label", "prediction", "score", "measured"), *rows])
    return folder


def test_a_task_is_judged_by_other_scores_beside_its_own(tmp_path):
    """One says the frequent class always: as often right as the other, which finds the rare one, too."""
    true = ["often"] * 90 + ["rarely"] * 10
    lazy = answers(tmp_path / "lazy", ["often"] * 100, true)
    able = answers(tmp_path / "able", ["often"] * 80 + ["rarely"] * 20, true)
    metrics = {name: MetricRule("higher", 0.02) for name in ("era/score", "era/macro_f1", "era/f1:rarely+matthews")}
    rules = replace(RULES, primary="era/score", margin=0.05, metrics=metrics)
    decision = judge(lazy, able, rules)
    assert not decision.passed
    assert verdicts(decision) == {"era/score": "equal", "era/macro_f1": "worse", "era/f1:rarely+matthews": "worse"}
    shown = {row.metric: (row.champion, row.challenger) for row in decision.table}
    assert shown["era/macro_f1"] == pytest.approx(((160 / 170 + 20 / 30) / 2, (180 / 190) / 2))
    assert all(row.interval is not None for row in decision.table)
    # To say the frequent class always is as good by accuracy, and by no other score.
    assert [bool(row.note) for row in decision.table] == [True, False, False]
    by_macro = replace(rules, primary="era/macro_f1")
    assert judge(able, lazy, by_macro).passed
    assert judge(able, lazy, by_macro).reasons[0].startswith("era/macro_f1 is significantly better: +0.3")
    # What `score` is the mean of are the tasks' own scores only.
    both = replace(PAPERS, metrics={"score": MetricRule("higher", 0.0), **metrics})
    assert both.for_evidence(able).tasks() == ["era/score"]


@pytest.mark.parametrize(
    ("said", "true", "own", "other"),
    [
        (["B-A O", "O O"], ["B-A O", "O B-A"], "entity_f1", "entity_f1"),
        (["red car", "blue"], ['["a red car"]', '["blue", "sky"]'], "exact_match", "exact_match+answer_f1"),
        (["1.5", "2", "4"], ["1", "2", "3"], "pearson", "spearman"),
    ],
)
def test_answers_by_another_score_are_those_that_were_written_under_it(tmp_path, said, true, own, other):
    one, two = (answers(tmp_path / score, said, true, score) for score in ("own", "other"))
    for folder, score in ((one, own), (two, other)):
        text = (folder / "era.1.csv").read_text()
        (folder / "era.1.csv").write_text(text.replace(f",{folder.name},", f",{score},"))
    found, expected = (read_task([folder / "era.1.csv"]) for folder in (one, two))
    by = found.by(other)
    assert (by.metric, by.value) == (f"era/{other}", expected.value)
    assert np.array_equal(by.results.columns, expected.results.columns)


def test_a_score_that_a_tasks_answers_do_not_have_is_refused_by_name(tmp_path):
    folder = answers(tmp_path / "a", ["x", "y"], ["x", "y"])
    for score, says in (
        ("pearson", r"^promotion\.metrics\.era/pearson: is of numbers, and the answers are classes"),
        ("f1:z", r"^promotion\.metrics\.era/f1:z: no label is 'z', whose F1 is the score; expected it among x, y"),
    ):
        rules = replace(RULES, primary=f"era/{score}", metrics={f"era/{score}": MetricRule("higher", 0.0)})
        with pytest.raises(UserError, match=says):
            judge(folder, folder, rules)
    with pytest.raises(
        ValueError, match=r"metrics\.era/macrof1: score: found 'macrof1'; expected accuracy, f1:<class>"
    ):
        replace(RULES, primary="era/macrof1", metrics={"era/macrof1": MetricRule("higher", 0.0)})


def test_with_several_seeds_their_mean_is_judged(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60, seeds=3)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 70, 80, seeds=2)
    assert by_tasks(challenger, champion).passed
    assert not by_tasks(champion, challenger).passed
    all_right(champion / "era.3.csv")
    rules = PAPERS.for_evidence(champion)
    assert read_evidence(champion, rules).tables["era"].value == pytest.approx((0.5 + 0.5 + 1) / 3)


def test_a_single_lucky_seed_is_no_proof(tmp_path):
    """On these examples the difference is significant; that another seed would show it too is not."""
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60, seeds=2)
    challenger = with_tasks(tmp_path / "new", "bits_per_byte", 50, 60, seeds=2)
    for task in ("era", "next"):
        all_right(challenger / f"{task}.2.csv")
    decision = by_tasks(challenger, champion)
    assert not decision.passed
    assert decision.reasons[0].startswith("score is not significantly better: +0.225, 95% interval -")
    assert "p = 0.0001 " in decision.reasons[0]


def test_the_first_model_of_any_paper_passes(tmp_path):
    for quantity in COMPARED:
        folder = with_tasks(tmp_path / quantity, quantity, 50, 60)
        rules = PAPERS.for_evidence(folder)
        decision = decide(read_evidence(folder, rules), None, rules)
        assert decision.passed
        assert verdicts(decision).pop(quantity) == "no champion"
        assert list(verdicts(decision).values()).count("not measured") == len(COMPARED) - 1


@pytest.mark.parametrize("quantity", ["bits_per_byte", "pseudo_bits_per_byte"])
def test_a_likelihood_that_is_not_finite_never_passes_whatever_the_champion_has(tmp_path, quantity):
    champion = with_tasks(tmp_path / "old", quantity, 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 90, 90, nats=math.nan)
    assert by_tasks(challenger, champion).reasons == ["pseudo_bits_per_byte: not a finite number"]


def test_other_examples_matter_where_they_are_compared_only(tmp_path):
    """An excerpt has fewer bytes than a document: no reason to evaluate a champion of another quantity again."""
    causal = with_tasks(tmp_path / "causal", "bits_per_byte", 50, 60)
    masked = with_tasks(tmp_path / "masked", "pseudo_bits_per_byte", 71, 81, documents=3)
    shorter = with_tasks(tmp_path / "shorter", "bits_per_byte", 51, 61, documents=3)
    assert by_tasks(masked, causal).passed
    assert by_tasks(shorter, causal).examples_differ == ["likelihood.csv"]
    (causal / "next.1.csv").unlink()
    assert by_tasks(masked, causal).examples_differ == ["next.1.csv"]


def test_evidence_of_a_task_under_another_score_is_of_other_examples(tmp_path):
    champion, challenger = (with_tasks(tmp_path / name, "bits_per_byte", 50, 60, seeds=2) for name in ("old", "new"))
    for path in challenger.glob("era.*.csv"):
        path.write_text(path.read_text().replace("accuracy", "matthews"))
    assert by_tasks(challenger, champion).examples_differ == ["era.1.csv", "era.2.csv"]


def test_excerpts_of_other_lengths_are_not_compared_and_forbid_nothing_else(tmp_path):
    """The first 128 tokens of a document are other bytes for another tokenizer, however often they are evaluated."""
    champion = with_tasks(tmp_path / "old", "pseudo_bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 71, 81, nats=9.0)
    path = challenger / "likelihood.csv"
    path.write_text(path.read_text().replace("\n1,1,10,", "\n1,1,9,"))
    rules = PAPERS.for_evidence(challenger)
    decision = judge(challenger, champion, rules)
    assert decision.passed
    assert decision.examples_differ == ["likelihood.csv"]
    assert verdicts(decision)["pseudo_bits_per_byte"] == "not comparable"
    by_likelihood = judge(challenger, champion, replace(rules, primary="pseudo_bits_per_byte"))
    assert not by_likelihood.passed
    assert by_likelihood.examples_differ == ["likelihood.csv"]
    assert by_likelihood.reasons[0].startswith("pseudo_bits_per_byte: not comparable, and is promotion.primary: ")
    (champion / "next.1.csv").unlink()
    assert judge(challenger, champion, rules).table == []


@pytest.mark.parametrize(
    ("nats", "passed", "verdict"),
    [(0.2, False, "worse"), (0.01, True, "worse within its tolerance"), (-1, True, "better")],
)
def test_a_likelihood_that_the_champion_does_not_have_is_held_against_an_earlier_champions(
    tmp_path, nats, passed, verdict
):
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


@pytest.mark.parametrize("quantity", COMPARED)
def test_without_a_task_the_challengers_likelihood_is_the_primary(tmp_path, quantity):
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


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"documents": 11}, ["likelihood.csv"]),
        ({"last_text": "other"}, ["likelihood.csv"]),
        ({"rule": "another"}, ["era.1.csv", "likelihood.csv"]),
    ],
)
def test_other_examples_or_rules_are_named_and_nothing_is_compared(tmp_path, change, differing):
    decision = judge(write(tmp_path / "a", nats=-0.5), write(tmp_path / "b", **change))
    assert not decision.passed
    assert decision.examples_differ == differing
    assert decision.table == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, r"promotion\.alpha: found 0\.0; expected above 0"),
        ({"margin": -0.1}, r"promotion\.margin: found -0\.1; expected at least 0"),
        ({"min_gain": 0.0}, r"promotion\.min_gain: unknown parameter"),
        ({"primary": "loss"}, "promotion.primary: found 'loss'"),
        ({"metrics": {"bits_per_byte": {"direction": "up", "tolerance": 0.0}}}, "promotion.metrics.bits_per_byte.dir"),
        ({"metrics": {"bits_per_byte": {"direction": "lower", "tolerance": -1.0}}}, "byte.tolerance: found -1"),
        (
            {"metrics": {"bits_per_byte": {"direction": "higher", "tolerance": 0.0}}},
            "byte.direction: found higher; exp",
        ),
        (
            {"metrics": {"score": {"direction": "lower", "tolerance": 0.0}}, "primary": "score"},
            "score.direction: found",
        ),
        ({"primary": "f1", "metrics": {"f1": {"direction": "lower", "tolerance": 0.0}}}, "metrics.f1: unknown"),
    ],
)
def test_rules_are_read_strictly(change, message):
    rules = {
        "primary": "bits_per_byte",
        "alpha": 0.05,
        "margin": 0.0,
        "metrics": {"bits_per_byte": {"direction": "lower", "tolerance": 0.0}},
    }
    with pytest.raises(UserError, match=message):
        from_dict(GateRules, rules | change, "promotion")


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Folders of evidence by name, and pairs of rules for them."""
    root = tmp_path_factory.mktemp("several")
    return [
        with_tasks(
            root / f"{era}-{following}-{nats}-{parameters}", quantity, era, following, nats, parameters=parameters
        )
        for era, following in [(50, 60), (52, 59), (80, 75)]
        for nats in (0.0, 0.05)
        for parameters in (10, 1000)
        for quantity in ["bits_per_byte"]
    ]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 11), st.integers(0, 11), st.sampled_from([0.0, 0.01, 0.2]), st.sampled_from([0.0, 0.03]))
def test_of_two_models_at_most_one_beats_the_other_where_there_is_no_margin(several, one, two, margin, tolerance):
    rules = replace(
        PAPERS, margin=margin, metrics=PAPERS.metrics | {"score": MetricRule("higher", tolerance)}
    ).for_evidence(several[0])
    there, back = judge(several[one], several[two], rules), judge(several[two], several[one], rules)
    better = [
        any("significantly better:" in reason for reason in side.reasons) and side.passed for side in (there, back)
    ]
    cheaper = [any("is cheaper:" in reason for reason in side.reasons) and side.passed for side in (there, back)]
    assert not all(better)
    assert not all(cheaper)
    assert margin > 0 or not (there.passed and back.passed)
    assert one != two or not there.passed
    for decision in (there, back):
        assert not decision.passed or verdicts(decision)["score"] not in UNJUDGED
        assert all(row.difference is None for row in decision.table if row.verdict in UNJUDGED)


@settings(max_examples=13, deadline=None)
@given(order=st.integers(0, 1000))
def test_the_order_of_the_rows_changes_no_digit(tmp_path_factory, order):
    folder = tmp_path_factory.mktemp("evidence")
    champion = write(folder / "champion", nats=1e-9)
    plain, shuffled = write(folder / "plain", correct=51), write(folder / "shuffled", correct=51, shuffle=order)
    assert read_evidence(plain, RULES) == read_evidence(shuffled, RULES)
    assert judge(plain, champion) == judge(shuffled, champion)


def test_the_rule_score_is_that_of_every_task_without_its_own(tmp_path):
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
    assert mean.tasks() == ["a/score", "b/score"]
    assert mean.sources() == ["a", "b", "likelihood.csv"]
    assert mean.for_evidence(tmp_path) == mean


def test_a_likelihood_by_a_lossy_tokenizer_is_kept_and_never_judged(tmp_path):
    """Not even between two of them: which of a text each drops is not known here."""
    better = write(tmp_path / "challenger", -0.9, 80, "lossy_bits_per_byte")
    worse = write(tmp_path / "champion", 0.0, 50, "lossy_bits_per_byte")
    for challenger, champion, passed in ((better, worse, True), (worse, better, False)):
        decision = by_tasks(challenger, champion)
        assert decision.passed is passed
        found = verdicts(decision)
        assert {found[name] for name in COMPARED} == {"not measured"}
    (better / "era.1.csv").unlink()
    with pytest.raises(UserError, match=r"lossy_bits_per_byte has no rule; expected .* a tokenizer that keeps all"):
        PAPERS.for_evidence(better)


def test_what_the_rules_need_is_missed_by_name(tmp_path):
    folder = write(tmp_path)
    (folder / "era.1.csv").unlink()
    with pytest.raises(UserError, match=r"era\.1\.csv: missing; expected it for promotion\.metrics: era/score"):
        read_evidence(folder, RULES)
    with pytest.raises(UserError, match="the challenger's evidence lacks era"):
        decide(read_evidence(folder, RULES, partial=True), None, RULES)
