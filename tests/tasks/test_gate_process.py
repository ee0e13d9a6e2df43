"""The gate as a process: its exit status, its file, its one-line errors."""

import html
import json
import math
import re
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
    command = [sys.executable, "-m", "tasks.commands.gate", *arguments, "--out", "decision.json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def evidence(folder, name, nats, sha="a", quantity="bits_per_byte"):
    (folder / name).mkdir()
    rows = "".join(f"{i},{sha},100,20,{nats},{quantity},r\n" for i in range(9))
    (folder / name / "likelihood.csv").write_text(f"id,sha256,bytes,tokens,nats,quantity,measured\n{rows}")


def test_gate_command_writes_the_decision(tmp_path):
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


def test_gate_command_refuses_a_model_that_has_forgotten_old_text(tmp_path):
    for name, change in (("old", (0, 0)), ("new", (1, -9))):
        evidence(tmp_path, name, 10.0)
        rows = "".join(f"{i},a,100,20,{10 + change[i > 9]},bits_per_byte,r\n" for i in range(30))
        (tmp_path / name / "likelihood.csv").write_text(f"id,sha256,bytes,tokens,nats,quantity,measured\n{rows}")
    evidence(tmp_path, "registered", 12.0)
    done = gate(tmp_path, "--challenger", "new", "--champion", "old", "--registered", "registered")
    assert (done.returncode, done.stderr) == (0, "")
    decision = json.loads((tmp_path / "decision.json").read_text())
    assert decision["reasons"][0] == (
        "bits_per_byte on old text: worse by 0.01443; the tolerance is 0 "
        "(9 of 30 documents, which the champion was registered with)"
    )
    whole, old = decision["table"]
    assert (whole["verdict"], whole["examples"], old["verdict"], old["examples"]) == ("better", 30, "worse", 9)
    assert not decision["passed"]


def test_gate_command_refuses_nan_in_valid_json(tmp_path):
    evidence(tmp_path, "broken", "nan")
    assert gate(tmp_path, "--challenger", "broken").returncode == 0
    decision = json.loads((tmp_path / "decision.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert not decision["passed"]


def test_gate_decision_has_a_field_for_other_examples(tmp_path):
    evidence(tmp_path, "new", 10.0, sha="a")
    evidence(tmp_path, "old", 20.0, sha="b")
    (tmp_path / "about.json").write_text("{}")
    assert gate(tmp_path, "--challenger", "new", "--champion", "old", "--about", "about.json").returncode == 0
    decision = json.loads((tmp_path / "decision.json").read_text())
    assert decision["examples_differ"] == ["likelihood.csv"]
    assert "description" not in decision


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


def test_gate_command_judges_another_architecture_by_tasks(tmp_path):
    for name, right, quantity in [("old", 1, "bits_per_byte"), ("new", 9, "pseudo_bits_per_byte")]:
        evidence(tmp_path, name, 10.0, sha=name, quantity=quantity)
        rows = "".join(f"{i},x,,{'abc'[i % 3]},{'abc'[(i + (i >= right)) % 3]},0.75,accuracy,r\n" for i in range(9))
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


def test_gate_command_bad_input_is_one_line_and_status_2(tmp_path):
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


NASTY = 'a <img src=x onerror="alert(1)"> ![b](http://b.io/c.png) [d](http://e.io) www.f.io | `g` **h**'
SIDE = {"version": "3", "run": "a1", "tags": {"plm.model": "xlnet"}, "params": {}, "metrics": {}, "samples": []}


def records(folder, champion, quantity="bits_per_byte", nats=20.0, **facts):
    """What a version's description and page say, of a challenger of which this is known."""
    evidence(folder, "new", 10.0)
    evidence(folder, "old", nats, quantity=quantity)
    sides = [SIDE | {"version": "1", "run": ""}, SIDE | facts]
    (folder / "about.json").write_text(json.dumps({"experiment": "7", "sides": sides if champion else sides[1:]}))
    side = ["--champion", "old"] if champion else []
    done = gate(folder, "--challenger", "new", *side, "--about", "about.json")
    assert (done.returncode, done.stderr) == (0, "")
    decision = json.loads((folder / "decision.json").read_text())
    return decision["description"], decision["page"]


def test_gate_record_has_both_sides(tmp_path):
    facts = {"metrics": {"parameters": 1234567, "seconds": 90.0}, "params": {"device": "some CPU"}}
    text, page = records(tmp_path, True, picture="report/verdict-1.svg", **facts)
    assert "](get-artifact?path=report/verdict-1.svg&run_uuid=a1)\n" in text.partition("Side by side")[0]
    assert text.startswith(
        "Passed by the gate, compared on the same examples with version 1, the champion at that time"
    )
    rows = [re.split(r"[\u2003\u200c]+\| ", line[2:-2]) for line in text.splitlines() if line.startswith("| ")]
    assert ["", "champion, version 1", "challenger, version 3"] in rows
    assert ["parameters", "not known", "1,234,567"] in rows
    assert ["pretrained in", "not known", "1.5 minutes"] in rows
    assert ["likelihood", "0.2885 bits_per_byte", "0.1443 bits_per_byte"] in rows
    difference = "-0.144 (-0.144 to -0.144)"
    judged = ["bits_per_byte (lower is better)", "9", "0.2885", "0.1443", difference, "0", "better"]
    assert judged in rows
    unknown = "architecture, objective, tokens read, energy, cost, data, commit"
    assert f"- not known: {unknown}\n" in text
    assert "the champion's run (deleted)" in text
    assert '; while this version is the champion, `plm rollback --reason "..."` goes back to the one before\n' in text
    assert "plm promote" not in text
    assert "[The run of this version](#/experiments/7/runs/a1)" in text
    assert "<td>1,234,567" in page
    assert "<img" not in page
    assert "href" not in page  # they would lead nowhere in the frame in which MLflow shows the page


def test_a_likelihood_that_a_published_model_lacks_is_not_known(tmp_path):
    text, _ = records(tmp_path, True, quantity="unknown", nats=math.nan)
    rows = [re.split(r"[\u2003\u200c]+\| ", line[2:-2]) for line in text.splitlines() if line.startswith("| ")]
    assert ["likelihood", "not known", "0.1443 bits_per_byte"] in rows


def test_gate_record_says_how_to_overrule(tmp_path):
    text, _ = records(tmp_path, True, quantity="pseudo_bits_per_byte")
    assert 'again; `plm promote 3 --force --reason "..."` overrules the gate\n' in text
    assert "rollback" not in text
    why = "the challenger's evidence holds bits_per_byte, the champion's pseudo_bits_per_byte"
    assert f"### Not compared\n\n- bits_per_byte: {why}\n- samples: none are kept\n" in text
    assert "| bits_per_byte" not in text


def test_a_record_without_a_champion_has_one_column(tmp_path):
    text, _ = records(tmp_path, False)
    assert text.startswith("Passed by the gate, without a champion to compare it with")
    assert "champion, version" not in text
    assert "plm promote" not in text
    assert "rollback" not in text
    assert "difference" not in text


def test_texts_and_names_in_a_record_are_no_markup(tmp_path):
    samples = [{"prompt": NASTY, "continuation": NASTY}, {"cloze": NASTY, "fills": [[NASTY, 0.5]]}]
    text, page = records(tmp_path, True, samples=samples, tags={"plm.model": NASTY, "git.commit": NASTY})
    shown = html.escape("www.f.io | `g` **h**")
    assert page.count(shown) >= 4
    for markup in ("<img", "<strong>h", "<code>g", "http://b", "](http", "www.f.io"):
        assert markup not in text
    assert "<img" not in page


def test_gate_record_is_truncated_after_a_line(tmp_path):
    text, page = records(tmp_path, True, tags={"plm.model": "a" * 3000, "plm.objective": "c" * 3000})
    assert len(text) <= 5000
    assert text.endswith(
        "\n\nCut here: MLflow keeps 5,000 characters. All of it is in `decision.html` of this version's run.\n"
    )
    assert "a" * 3000 in text
    assert "ccc" not in text
    assert "c" * 3000 in page
