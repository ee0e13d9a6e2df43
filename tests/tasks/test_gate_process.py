"""The gate as a process: its exit status, its file, its one-line errors."""

import json
import subprocess
import sys

PARAMS = """
promotion:
  registered_model: plm
  primary: bits_per_byte
  alpha: 0.05
  margin: 0.0
  metrics:
    bits_per_byte: {direction: lower, tolerance: 0.0}
"""


def gate(folder, *arguments, params=PARAMS):
    (folder / "params.yaml").write_text(params)
    command = [sys.executable, "-m", "tasks.gate", *arguments, "--out", "decision.json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def evidence(folder, name, nats, sha="a", quantity="bits_per_byte"):
    (folder / name).mkdir()
    rows = "".join(f"{i},{sha},100,20,{nats},{quantity},r\n" for i in range(9))
    (folder / name / "likelihood.csv").write_text(f"id,sha256,bytes,tokens,nats,quantity,measured\n{rows}")


def test_the_decision_is_in_the_file_whether_passed_or_refused(tmp_path):
    evidence(tmp_path, "good", 10.0)
    evidence(tmp_path, "bad", 20.0)
    for challenger, champion, passed in [("good", "bad", True), ("bad", "good", False)]:
        done = gate(tmp_path, "--challenger", challenger, "--champion", champion)
        assert done.returncode == 0, done.stderr
        decision = json.loads((tmp_path / "decision.json").read_text())
        assert decision["passed"] is passed
        assert decision["examples_differ"] == []
        assert done.stdout.startswith("passed" if passed else "refused")
        assert decision["table"][0]["metric"] == "bits_per_byte"


def test_nan_is_refused_and_the_file_is_valid_json(tmp_path):
    evidence(tmp_path, "broken", "nan")
    assert gate(tmp_path, "--challenger", "broken").returncode == 0
    decision = json.loads((tmp_path / "decision.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert not decision["passed"]


def test_other_examples_have_a_field_of_their_own(tmp_path):
    evidence(tmp_path, "new", 10.0, sha="a")
    evidence(tmp_path, "old", 20.0, sha="b")
    assert gate(tmp_path, "--challenger", "new", "--champion", "old").returncode == 0
    assert json.loads((tmp_path / "decision.json").read_text())["examples_differ"] == ["likelihood.csv"]


BY_SCORE = """
promotion:
  registered_model: plm
  primary: score
  alpha: 0.05
  margin: 0.0
  metrics:
    bits_per_byte: {direction: lower, tolerance: 0.02}
    score: {direction: higher, tolerance: 0.03}
"""


def test_a_model_of_another_paper_is_judged_by_its_tasks(tmp_path):
    for name, prediction, quantity in [("old", "b", "bits_per_byte"), ("new", "a", "pseudo_bits_per_byte")]:
        evidence(tmp_path, name, 10.0, sha=name, quantity=quantity)
        rows = "".join(f"{i},x,,a,{prediction},0.75,accuracy,r\n" for i in range(9))
        (tmp_path / name / "era.1.csv").write_text(
            f"id,sha256,subset,label,prediction,confidence,score,measured\n{rows}"
        )
    (tmp_path / "old/tickets.1.csv").write_text((tmp_path / "old/era.1.csv").read_text())
    assert gate(tmp_path, "--challenger", "new", "--champion", "old", params=BY_SCORE).returncode == 0
    decision = json.loads((tmp_path / "decision.json").read_text())
    assert decision["passed"]
    assert decision["examples_differ"] == []
    assert {row["metric"]: row["verdict"] for row in decision["table"]} == {
        "score": "better",
        "era/score": "better",
        "bits_per_byte": "not measured",
        "tickets/score": "not measured",
    }
    rows = {row["metric"]: row for row in decision["table"]}
    assert (rows["era/score"]["examples"], rows["era/score"]["tolerance"]) == (9, 0.03)
    assert (rows["score"]["examples"], rows["bits_per_byte"]["examples"]) == (None, None)
    assert rows["tickets/score"]["note"] == "the challenger was not measured on it"


def test_bad_input_is_one_line_and_status_2(tmp_path):
    evidence(tmp_path, "good", 10.0)
    (tmp_path / "empty").mkdir()
    cases = [
        (("--challenger", "empty"), PARAMS, "error: empty/likelihood.csv: missing; expected it for promotion.metrics"),
        (("--challenger", "good"), PARAMS.replace("lower", "down"), "error: promotion.metrics.bits_per_byte.direction"),
        (("--challenger", "good"), PARAMS.replace("margin: 0.0", "margni: 0.0"), "error: promotion.margni"),
        (("--challenger", "good"), "tracking: {}", "error: promotion: no such section"),
        (
            ("--challenger", "good"),
            BY_SCORE.replace("bits_per_byte", "pseudo_bits_per_byte"),
            "error: promotion.primary: score, but no task was measured, and bits_per_byte has no rule",
        ),
    ]
    for arguments, params, message in cases:
        done = gate(tmp_path, *arguments, params=params)
        assert done.returncode == 2
        assert done.stderr.startswith(message), done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "decision.json").exists()
