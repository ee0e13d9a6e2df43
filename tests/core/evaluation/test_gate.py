"""The gate promotes the better model, never the worse, and never compares what cannot be compared."""

import csv
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import BadInput, from_dict
from plm_core.evaluation.gate import GateRules, MetricRule, Table, decide, read_evidence

RULES = GateRules(
    primary="bits_per_byte",
    min_gain=0.0,
    metrics={"bits_per_byte": MetricRule("lower", 0.0), "era/accuracy": MetricRule("higher", 0.03)},
)


def write(folder, nats=(100.0, 200.0), correct=50, quantity="bits_per_byte", task="era", shuffle=None, last_text="7"):
    """An evidence folder of two documents and 100 classified examples, ``correct`` of them right."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [(i, f"{i}" if i else last_text, 30 + i, 7, value, quantity) for i, value in enumerate(nats)]
    examples = [(f"e{i}", f"sha{i}", "old", "old" if i < correct else "new") for i in range(100)]
    if shuffle is not None:
        random.Random(shuffle).shuffle(documents)
        random.Random(shuffle).shuffle(examples)
    for name, header, rows in [
        ("likelihood", ("id", "sha256", "bytes", "tokens", "nats", "quantity"), documents),
        (task, ("id", "sha256", "label", "prediction"), examples),
    ]:
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return folder


def evidence(bits, accuracy):
    """Evidence in memory, with these metric values."""
    return {
        "likelihood.csv": Table(frozenset({("0", "a", "9")}), "bits_per_byte", bits),
        "era.csv": Table(frozenset({("0", "a", "old")}), "era/accuracy", accuracy),
    }


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
    for challenger, champion in [(masked, causal), (causal, masked), (masked, masked)]:
        decision = judge(challenger, champion)
        assert not decision.passed
        assert decision.reasons[0].startswith("bits_per_byte: not comparable: the challenger's evidence holds ")


@pytest.mark.parametrize("change", [{"nats": (1.0,)}, {"last_text": "other"}])
def test_other_examples_are_named_and_nothing_is_compared(tmp_path, change):
    decision = judge(write(tmp_path / "a", nats=(1.0, 1.0)), write(tmp_path / "b", **change))
    assert not decision.passed
    assert decision.examples_differ == ["likelihood.csv"]
    assert decision.table == []


def test_a_champion_without_a_needed_file_has_other_examples(tmp_path):
    champion = write(tmp_path / "b")
    (champion / "era.csv").unlink()
    assert judge(write(tmp_path / "a"), champion).examples_differ == ["era.csv"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("era.csv", None, "era.csv: missing; expected it for promotion.metrics: era/accuracy"),
        ("era.csv", "", "era.csv: lacks the columns id, sha256, label, prediction"),
        ("era.csv", "id,sha256,label,prediction\n", "holds no example"),
        ("era.csv", "id,sha256,label,prediction\n1,a,x,x\n1,b,x,x\n", "era.csv:3: the id '1' occurs twice"),
        ("era.csv", "id,sha256,label,prediction\n1,a\n", "era.csv:2: too few fields"),
        ("likelihood.csv", "id,sha256,bytes,tokens,nats,quantity\n1,a,x,1,1,bits_per_byte\n", "invalid literal"),
        ("likelihood.csv", "id,sha256,bytes,tokens,nats,quantity\n1,a,0,1,1,bits_per_byte\n", "0 bytes of text"),
        ("likelihood.csv", "id,sha256,bytes,tokens,nats,quantity\n1,a,9,1,1,perplexity\n", "holds perplexity"),
    ],
)
def test_damaged_evidence_is_a_clear_error(tmp_path, file, text, message):
    folder = write(tmp_path)
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    with pytest.raises(BadInput, match=message.replace(".", r"\.")):
        read_evidence(folder, RULES)


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
SIDES = st.builds(evidence, NUMBERS, st.floats(0, 1))
ANY_RULES = st.builds(
    lambda primary, gain, one, two: GateRules(
        primary, gain, {"bits_per_byte": MetricRule("lower", one), "era/accuracy": MetricRule("higher", two)}
    ),
    st.sampled_from(["bits_per_byte", "era/accuracy"]),
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


@given(NUMBERS, st.floats(0, 1), SIDES, ANY_RULES, st.floats(0, 10), st.floats(0, 1))
def test_a_better_challenger_is_never_refused_where_a_worse_one_passes(bits, accuracy, champion, rules, less, more):
    before = decide(evidence(bits, accuracy), champion, rules)
    after = decide(evidence(bits - less, accuracy + more), champion, rules)
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
    with pytest.raises(ValueError, match="primary"):
        GateRules("accuracy", 0.0, {"accuracy": every})
