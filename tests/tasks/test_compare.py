"""The comparison as a process: the page, its JSON, its one-line errors."""

import json
import subprocess
import sys

import pytest

HEADER = "id,sha256,subset,label,prediction,confidence,score,measured\n"


def compare(folder, *arguments):
    command = [sys.executable, "-m", "tasks.commands.compare", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def evidence(folder, right, sha="s"):
    """Two tasks of 100 examples, in which this many answers are right, and likelihoods."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, correct in (("era", right), ("next", right - 1)):
        rows = "".join(f"{i},{sha}{i},,yes,{'yes' if i < correct else 'no'},0.75,accuracy,r\n" for i in range(100))
        (folder / f"{task}.1.csv").write_text(HEADER + rows)
    rows = "".join(f"{i},s{i},100,20,{300 - right + i},bits_per_byte,r\n" for i in range(20))
    (folder / "likelihood.csv").write_text(f"id,sha256,bytes,tokens,nats,quantity,measured\n{rows}")


@pytest.fixture
def project(tmp_path):
    """A folder with the evidence of two models."""
    for name, right in (("gpt", 60), ("bert", 80)):
        evidence(tmp_path / "artifacts/evidence" / name, right)
    return tmp_path


def test_compare_prints_and_writes_the_page(project):
    done = compare(project, "gpt", "bert")
    assert done.returncode == 0, done.stderr
    page = (project / "artifacts/compare/gpt-bert/compare.md").read_text()
    assert done.stdout.startswith(page)
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| era")]
    ((_, name, score, examples, first, second, difference, p, test, holm, effect, verdict, _),) = rows
    assert (name, score, examples, test, verdict) == ("era", "accuracy", "100", "McNemar", "bert is better")
    assert (first[:5], second[:5], difference[:6]) == ("0.600", "0.800", "+0.200")
    assert (p, holm, effect) == ("<0.001", "<0.001", "+0.50")
    numbers = json.loads((project / "artifacts/compare/gpt-bert/compare.json").read_text())
    assert [row["name"] for row in numbers["tasks"]] == ["era", "next"]
    assert numbers["averages"][0]["difference"]["value"] == pytest.approx(0.2)
    assert numbers["likelihood"][0]["better"] == "bert"


def test_compare_is_reproducible(project):
    for out in ("one", "two"):
        assert compare(project, "gpt", "artifacts/evidence/bert", "--out", out).returncode == 0
    for name in ("compare.md", "compare.json"):
        assert (project / "one" / name).read_bytes() == (project / "two" / name).read_bytes()
    assert not (project / "artifacts/compare").exists()


def test_folders_of_the_same_name_are_told_apart(project):
    evidence(project / "elsewhere/gpt", 61)
    done = compare(project, "gpt", "elsewhere/gpt", "--json")
    result = json.loads(done.stdout)
    assert (result["first"], result["second"]) == ("gpt (1)", "gpt (2)")
    assert [row["better"] for row in result["tasks"]] == [None, None]


def test_compare_bad_input_is_one_line_and_status_2(project):
    evidence(project / "artifacts/evidence/other", 60, sha="t")
    (project / "empty").mkdir()
    for arguments, message in [
        (("gpt", "grt"), "error: grt: neither a model with evidence nor a folder; models with evidence: bert"),
        (
            ("gpt", "other"),
            "error: artifacts/evidence/other/era.1.csv: holds different examples than artifacts/evidence/gp",
        ),
        (("gpt", "empty"), "error: artifacts/evidence/gpt and empty: have nothing in common; era: only gpt has it"),
        (("gpt", "bert", "--name", "mine"), "error: --name: found 1; expected two, for the first and for the second"),
    ]:
        done = compare(project, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(message), done.stderr
        assert done.stderr.count("\n") == 1
