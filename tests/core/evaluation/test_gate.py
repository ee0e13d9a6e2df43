"""The gate promotes the better model, never the worse, and never compares what cannot be compared."""

import csv
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import BadInput, from_dict
from plm_core.evaluation.evidence import QUANTITIES, Table
from plm_core.evaluation.gate import UNJUDGED, GateRules, MetricRule, decide, read_evidence

RULES = GateRules(
    primary="bits_per_byte",
    min_gain=0.0,
    metrics={"bits_per_byte": MetricRule("lower", 0.0), "era/accuracy": MetricRule("higher", 0.03)},
)
PAPERS = GateRules(
    primary="accuracy",
    min_gain=0.0,
    metrics={name: MetricRule("lower", 0.02) for name in QUANTITIES} | {"accuracy": MetricRule("higher", 0.03)},
)
"""Rules for models of different papers, as in the parameters."""


def write(
    folder, nats=(100.0, 200.0), correct=50, quantity="bits_per_byte", task="era", shuffle=None, last_text="7", rule="r"
):
    """An evidence folder of two documents and 100 classified examples, ``correct`` of them right."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [(i, f"{i}" if i else last_text, 30 + i, 7, value, quantity, rule) for i, value in enumerate(nats)]
    examples = [(f"e{i}", f"sha{i}", "old", "old" if i < correct else "new", rule) for i in range(100)]
    if shuffle is not None:
        random.Random(shuffle).shuffle(documents)
        random.Random(shuffle).shuffle(examples)
    for name, header, rows in [
        ("likelihood", ("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured"), documents),
        (task, ("id", "sha256", "label", "prediction", "measured"), examples),
    ]:
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return folder


def evidence(bits, accuracy, quantity="bits_per_byte"):
    """Evidence in memory, with these metric values."""
    return {
        "likelihood.csv": Table(frozenset({("0", "a", "r", "9")}), quantity, bits),
        "era.csv": Table(frozenset({("0", "a", "r", "old")}), "era/accuracy", accuracy),
    }


def with_tasks(folder, quantity, era, following, nats=(100.0, 200.0)):
    """An evidence folder with two tasks, of whose 100 examples so many are right."""
    write(folder, nats, era, quantity)
    return write(folder, nats, following, quantity, task="next")


def verdicts(decision):
    return {row.metric: row.verdict for row in decision.table}


def judge(challenger, champion, rules=RULES):
    return decide(read_evidence(challenger, rules), read_evidence(champion, rules, partial=True), rules)


def test_metrics_come_from_the_rows(tmp_path):
    found = read_evidence(write(tmp_path, nats=(100.0, 200.0), correct=37), RULES)
    assert found["likelihood.csv"].value == pytest.approx(300 / math.log(2) / 61)
    assert found["era.csv"].value == 0.37


@pytest.mark.parametrize("metric", ["bits_per_byte", "era/accuracy"])
@pytest.mark.parametrize("better", [True, False])
def test_the_better_model_wins_and_the_worse_is_refused_on_every_metric(tmp_path, metric, better):
    rules = replace(RULES, primary=metric)
    good, bad = write(tmp_path / "good", nats=(99.0, 199.0), correct=60), write(tmp_path / "bad", correct=50)
    decision = judge(good, bad, rules) if better else judge(bad, good, rules)
    assert decision.passed is better
    assert {row.verdict for row in decision.table} == {"better" if better else "worse"}


def test_a_metric_beside_the_primary_may_worsen_by_its_tolerance_and_no_more(tmp_path):
    champion = write(tmp_path / "champion", correct=53)
    within = judge(write(tmp_path / "within", nats=(90.0, 190.0), correct=50), champion)
    beyond = judge(write(tmp_path / "beyond", nats=(90.0, 190.0), correct=49), champion)
    assert within.passed
    assert within.table[1].verdict == "worse within its tolerance"
    assert beyond.reasons == ["era/accuracy: worse by 0.04; allowed are 0.03"]


def test_the_gain_must_exceed_min_gain():
    rules = replace(RULES, min_gain=0.1)
    assert not decide(evidence(1.9, 0.5), evidence(2.0, 0.5), rules).passed
    assert decide(evidence(1.89, 0.5), evidence(2.0, 0.5), rules).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_a_finite_number_never_passes(value, first):
    champion = None if first else evidence(2.0, 0.5)
    decision = decide(evidence(value, 0.9), champion, RULES)
    assert not decision.passed
    assert decision.reasons == ["bits_per_byte: not a finite number"]
    assert not decide(evidence(1.0, 0.9), evidence(value, 0.5), RULES).passed


def test_the_first_model_passes():
    decision = decide(evidence(2.0, 0.5), None, RULES)
    assert decision.passed
    assert [row.verdict for row in decision.table] == ["no champion", "no champion"]


def test_likelihoods_of_different_names_are_never_compared(tmp_path):
    causal = write(tmp_path / "causal")
    masked = write(tmp_path / "masked", nats=(1.0, 2.0), quantity="pseudo_bits_per_byte")
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


def test_a_model_of_another_paper_is_judged_by_its_accuracies(tmp_path):
    causal = with_tasks(tmp_path / "causal", "bits_per_byte", 50, 60)
    masked = with_tasks(tmp_path / "masked", "pseudo_bits_per_byte", 49, 62, nats=(1e3, 1e3))
    rules = PAPERS.for_evidence(masked)
    decision = judge(masked, causal, rules)
    assert decision.passed
    assert decision.reasons == ["accuracy is better by 0.005, and no metric is worse than its tolerance allows"]
    assert verdicts(decision) == {
        "accuracy": "better",
        "era/accuracy": "worse within its tolerance",
        "next/accuracy": "better",
        "bits_per_byte": "not measured",
        "pseudo_bits_per_byte": "not comparable",
        "fixed_order_bits_per_byte": "not measured",
    }
    shown = {row.metric: (row.champion, row.challenger) for row in decision.table}
    assert shown["accuracy"] == pytest.approx((0.55, 0.555))
    assert shown["bits_per_byte"] == (pytest.approx(300 / math.log(2) / 61), None)
    assert shown["pseudo_bits_per_byte"] == (None, pytest.approx(2000 / math.log(2) / 61))
    assert shown["fixed_order_bits_per_byte"] == (None, None)
    back = judge(causal, masked, rules)
    assert back.reasons == ["accuracy: gains -0.005; expected more than promotion.min_gain = 0"]
    assert verdicts(back)["bits_per_byte"] == "not comparable"


@pytest.mark.parametrize(("nats", "passed"), [(101.0, True), (98.0, True), (102.0, False)])
def test_a_model_of_the_same_paper_is_judged_by_its_likelihood_as_well(tmp_path, nats, passed):
    """0.02 bits a byte of 61 bytes are 0.85 nats."""
    champion = with_tasks(tmp_path / "old", "fixed_order_bits_per_byte", 50, 60, nats=(100.5, 200.0))
    challenger = with_tasks(tmp_path / "new", "fixed_order_bits_per_byte", 70, 60, nats=(nats, 200.0))
    decision = judge(challenger, champion, PAPERS.for_evidence(challenger))
    assert decision.passed is passed
    assert verdicts(decision)["bits_per_byte"] == "not measured"
    if not passed:
        assert decision.reasons[0].startswith("fixed_order_bits_per_byte: worse by 0.035")


def test_no_single_task_may_lose_more_than_the_tolerance_whatever_the_mean_gains(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 90, 56)
    decision = judge(challenger, champion, PAPERS.for_evidence(challenger))
    assert decision.reasons == ["next/accuracy: worse by 0.04; allowed are 0.03"]
    assert verdicts(decision)["accuracy"] == "better"


def test_the_mean_must_gain_more_than_min_gain(tmp_path):
    champion = with_tasks(tmp_path / "old", "bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 50, 62)
    for min_gain, passed in [(0.0, True), (0.01, False)]:
        rules = replace(PAPERS, min_gain=min_gain).for_evidence(challenger)
        assert judge(challenger, champion, rules).passed is passed


def test_the_first_model_of_any_paper_passes(tmp_path):
    for quantity in QUANTITIES:
        folder = with_tasks(tmp_path / quantity, quantity, 50, 60)
        rules = PAPERS.for_evidence(folder)
        decision = decide(read_evidence(folder, rules), None, rules)
        assert decision.passed
        assert verdicts(decision).pop(quantity) == "no champion"
        assert list(verdicts(decision).values()).count("not measured") == 2


@pytest.mark.parametrize("quantity", ["bits_per_byte", "pseudo_bits_per_byte"])
def test_a_likelihood_that_is_not_finite_never_passes_whatever_the_champion_has(tmp_path, quantity):
    champion = with_tasks(tmp_path / "old", quantity, 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 90, 90, nats=(math.nan, 1.0))
    decision = judge(challenger, champion, PAPERS.for_evidence(challenger))
    assert decision.reasons == ["pseudo_bits_per_byte: not a finite number"]


def test_other_examples_matter_where_they_are_compared_only(tmp_path):
    """An excerpt has fewer bytes than a document: no reason to evaluate a champion of another quantity again."""
    causal = with_tasks(tmp_path / "causal", "bits_per_byte", 50, 60)
    masked = with_tasks(tmp_path / "masked", "pseudo_bits_per_byte", 51, 61, nats=(1.0,))
    shorter = with_tasks(tmp_path / "shorter", "bits_per_byte", 51, 61, nats=(1.0,))
    assert judge(masked, causal, PAPERS.for_evidence(masked)).passed
    assert judge(shorter, causal, PAPERS.for_evidence(shorter)).examples_differ == ["likelihood.csv"]
    (causal / "next.csv").unlink()
    assert judge(masked, causal, PAPERS.for_evidence(masked)).examples_differ == ["next.csv"]


def test_excerpts_of_other_lengths_are_not_compared_and_forbid_nothing_else(tmp_path):
    """The first 128 tokens of a document are other bytes for another tokenizer, however often they are evaluated."""
    champion = with_tasks(tmp_path / "old", "pseudo_bits_per_byte", 50, 60)
    challenger = with_tasks(tmp_path / "new", "pseudo_bits_per_byte", 51, 61, nats=(1e3, 1e3))
    path = challenger / "likelihood.csv"
    path.write_text(path.read_text().replace("1,1,31,", "1,1,29,"))
    rules = PAPERS.for_evidence(challenger)
    decision = judge(challenger, champion, rules)
    assert decision.passed
    assert decision.examples_differ == ["likelihood.csv"]
    assert verdicts(decision)["pseudo_bits_per_byte"] == "not comparable"
    by_likelihood = judge(challenger, champion, replace(rules, primary="pseudo_bits_per_byte"))
    assert not by_likelihood.passed
    assert by_likelihood.examples_differ == ["likelihood.csv"]
    assert by_likelihood.reasons[0].startswith("pseudo_bits_per_byte: not comparable, and is promotion.primary: ")
    (champion / "next.csv").unlink()
    assert judge(challenger, champion, rules).table == []


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_without_a_task_the_challengers_likelihood_is_the_primary(tmp_path, quantity):
    champion, challenger = (
        write(tmp_path / name, nats, quantity=quantity) for name, nats in [("a", (9, 9)), ("b", (8, 9))]
    )
    for folder in (champion, challenger):
        (folder / "era.csv").unlink()
    rules = PAPERS.for_evidence(challenger)
    assert (rules.primary, list(rules.metrics)) == (quantity, list(QUANTITIES))
    assert judge(challenger, champion, rules).passed
    assert not judge(champion, challenger, rules).passed
    unruled = replace(PAPERS, metrics={"accuracy": PAPERS.metrics["accuracy"]})
    with pytest.raises(
        BadInput, match=rf"^promotion.primary: accuracy, but no task was measured, and {quantity} has no"
    ):
        unruled.for_evidence(challenger)


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"nats": (1.0,)}, ["likelihood.csv"]),
        ({"last_text": "other"}, ["likelihood.csv"]),
        ({"rule": "another"}, ["era.csv", "likelihood.csv"]),
    ],
)
def test_other_examples_or_rules_are_named_and_nothing_is_compared(tmp_path, change, differing):
    decision = judge(write(tmp_path / "a", nats=(1.0, 1.0)), write(tmp_path / "b", **change))
    assert not decision.passed
    assert decision.examples_differ == differing
    assert decision.table == []


def test_a_champion_without_a_needed_file_has_other_examples(tmp_path):
    champion = write(tmp_path / "b")
    (champion / "era.csv").unlink()
    assert judge(write(tmp_path / "a"), champion).examples_differ == ["era.csv"]


TASK, LIKELIHOODS = "id,sha256,label,prediction,measured\n", "id,sha256,bytes,tokens,nats,quantity,measured\n"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("era.csv", None, "era.csv: missing; expected it for promotion.metrics: era/accuracy"),
        ("era.csv", "", "era.csv: lacks the columns id, sha256, label, prediction, measured"),
        ("era.csv", TASK, "holds no example"),
        ("era.csv", f"{TASK}1,a,x,x,r\n1,b,x,x,r\n", "era.csv:3: the id '1' occurs twice"),
        ("era.csv", f"{TASK}1,a\n", "era.csv:2: too few fields"),
        ("era.csv", f"{TASK}1,a,\udcff,x,r\n", "era.csv: damaged"),
        ("era.csv", f'{TASK}1,"{"a" * 200_000}', "era.csv: damaged"),
        ("likelihood.csv", f"{LIKELIHOODS}1,a,x,1,1,bits_per_byte,r\n", "invalid literal"),
        ("likelihood.csv", f"{LIKELIHOODS}1,a,0,1,1,bits_per_byte,r\n", "0 bytes of text"),
        ("likelihood.csv", f"{LIKELIHOODS}1,a,9,1,1,perplexity,r\n", "holds perplexity"),
    ],
)
def test_damaged_evidence_is_a_clear_error(tmp_path, file, text, message):
    path = write(tmp_path) / file
    path.unlink() if text is None else path.write_text(text, errors="surrogateescape")
    with pytest.raises(BadInput, match=message.replace(".", r"\.")):
        read_evidence(tmp_path, RULES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_gain": -0.1}, "promotion.min_gain: found -0.1; expected a number from 0"),
        ({"primary": "loss"}, "promotion.primary: found 'loss'"),
        ({"metrics": {"bits_per_byte": {"direction": "up", "tolerance": 0.0}}}, "promotion.metrics.bits_per_byte.dir"),
        ({"metrics": {"bits_per_byte": {"direction": "lower", "tolerance": -1.0}}}, "byte.tolerance: found -1"),
        ({"primary": "f1", "metrics": {"f1": {"direction": "lower", "tolerance": 0.0}}}, "metrics.f1: unknown"),
    ],
)
def test_rules_are_read_strictly(change, message):
    rules = {
        "primary": "bits_per_byte",
        "min_gain": 0.0,
        "metrics": {"bits_per_byte": {"direction": "lower", "tolerance": 0.0}},
    }
    with pytest.raises(BadInput, match=message):
        from_dict(GateRules, rules | change, "promotion")


NUMBERS = st.floats(0, 10)
SIDES = st.builds(evidence, NUMBERS, st.floats(0, 1), st.sampled_from(QUANTITIES))
ANY_RULES = st.builds(
    lambda primary, gain, one, two: GateRules(
        primary,
        gain,
        {name: MetricRule("lower", one) for name in QUANTITIES}
        | {name: MetricRule("higher", two) for name in ("accuracy", "era/accuracy")},
    ),
    st.sampled_from(["bits_per_byte", "pseudo_bits_per_byte", "era/accuracy", "accuracy"]),
    NUMBERS,
    NUMBERS,
    NUMBERS,
)


@given(SIDES, SIDES, ANY_RULES)
def test_of_two_models_at_most_one_beats_the_other(one, two, rules):
    assert not (decide(one, two, rules).passed and decide(two, one, rules).passed)


@given(SIDES, ANY_RULES)
def test_no_model_beats_itself(side, rules):
    assert not decide(side, side, rules).passed


@given(SIDES, st.none() | SIDES, ANY_RULES)
def test_who_passes_was_judged_by_the_primary(challenger, champion, rules):
    decision = decide(challenger, champion, rules)
    if decision.passed:
        assert verdicts(decision)[rules.primary] in ("better", "no champion")
    assert all(row.difference is None for row in decision.table if row.verdict in UNJUDGED)


@given(NUMBERS, st.floats(0, 1), st.sampled_from(QUANTITIES), SIDES, ANY_RULES, st.floats(0, 10), st.floats(0, 1))
def test_a_better_challenger_is_never_refused_where_a_worse_one_passes(
    bits, accuracy, quantity, champion, rules, less, more
):
    before = decide(evidence(bits, accuracy, quantity), champion, rules)
    after = decide(evidence(bits - less, accuracy + more, quantity), champion, rules)
    assert after.passed or not before.passed


@given(order=st.integers(0, 1000))
def test_the_order_of_the_rows_changes_no_digit(tmp_path_factory, order):
    folder = tmp_path_factory.mktemp("evidence")
    nats = (0.1, 0.2, 0.3, 1e9, -1e9)
    plain = read_evidence(write(folder / "plain", nats=nats), RULES)
    assert plain == read_evidence(write(folder / "shuffled", nats=nats, shuffle=order), RULES)


def test_the_rule_accuracy_is_that_of_every_task_without_its_own(tmp_path):
    every, own = MetricRule("higher", 0.03), MetricRule("higher", 0.5)
    rules = GateRules(
        "bits_per_byte", 0.0, {"bits_per_byte": MetricRule("lower", 0.0), "accuracy": every, "b/accuracy": own}
    )
    for name in ("likelihood.csv", "a.csv", "b.csv"):
        (tmp_path / name).touch()
    written_out = rules.for_evidence(tmp_path)
    assert written_out.metrics == {"bits_per_byte": MetricRule("lower", 0.0), "a/accuracy": every, "b/accuracy": own}
    assert written_out.for_evidence(tmp_path) == written_out
    mean = replace(rules, primary="accuracy").for_evidence(tmp_path)
    assert mean.metrics == written_out.metrics | {"accuracy": every}
    assert mean.tasks() == ["a/accuracy", "b/accuracy"]
    assert mean.files() == ["a.csv", "b.csv", "likelihood.csv"]
    assert mean.for_evidence(tmp_path) == mean


def test_a_likelihood_by_a_lossy_tokenizer_is_kept_and_never_judged(tmp_path):
    """Not even between two of them: which of a text each drops is not known here."""
    better = write(tmp_path / "challenger", (1.0, 2.0), 60, "lossy_bits_per_byte")
    worse = write(tmp_path / "champion", (100.0, 200.0), 50, "lossy_bits_per_byte")
    for challenger, champion, passed in ((better, worse, True), (worse, better, False)):
        rules = PAPERS.for_evidence(challenger)
        decision = decide(read_evidence(challenger, rules), read_evidence(champion, rules), rules)
        assert decision.passed is passed
        found = verdicts(decision)
        assert {found[name] for name in QUANTITIES} == {"not measured"}
    with pytest.raises(BadInput, match=r"metrics\.lossy_bits_per_byte: unknown; expected accuracy"):
        from_dict(
            GateRules,
            {
                "primary": "accuracy",
                "min_gain": 0.0,
                "metrics": {n: {"direction": "lower", "tolerance": 0.0} for n in ("accuracy", "lossy_bits_per_byte")},
            },
            "promotion",
        )
    (better / "era.csv").unlink()
    with pytest.raises(BadInput, match=r"lossy_bits_per_byte has no rule; expected .* a tokenizer that keeps all"):
        PAPERS.for_evidence(better)
