"""Stage fewshot: its files hold what its metrics sum up, contamination is left out, what cannot be asked is refused."""

import csv
from collections import Counter

import pytest
from projects import Project

from plm_core.benchmarks.example_readers import sample
from plm_core.benchmarks.task import read_examples
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError
from plm_core.shared.files import write_checksums
from tasks.stages.fewshot import fewshot

RULES = {"score": "prediction"} | {f"score_{rule}": rule for rule in ("per_byte", "per_token", "unconditional")}
ASKED = [(task, shots) for task in ("sotu-era", "next") for shots in (0, 2)]


def rows(project: Project, task, shots):
    with (project.root / f"artifacts/fewshot/gpt/{task}.{shots}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def figures(project, task, shots):
    begin, metrics = f"{task}/{shots}/", project.metrics("fewshot-gpt")
    return {name.removeprefix(begin): value for name, value in metrics.items() if name.startswith(begin)}


def right(rows, column):
    return sum(row["label"] == row[column] for row in rows) / len(rows)


@pytest.mark.parametrize(("task", "shots"), ASKED)
def test_fewshot_metrics_match_the_evidence(built, task, shots):
    evidence, metrics = rows(built, task, shots), figures(built, task, shots)
    test = read_examples(built.root / f"artifacts/examples/{task}/test.jsonl", TASKS[task].task)
    labels = TASKS[task].task.labels
    assert [(r["id"], r["sha256"], r["label"]) for r in evidence] == [
        (e.id, e.sha256, labels[e.label]) for e in sample(test, 23)
    ]
    clean = [row for row in evidence if float(row["overlap"]) < 0.5]
    assert (metrics["examples"], metrics["excluded"]) == (len(clean), len(evidence) - len(clean))
    for name, column in RULES.items():
        assert metrics[name] == pytest.approx(right(clean, column))
        assert metrics[f"all_{name}"] == pytest.approx(right(evidence, column))
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
    held = Counter(int(row["shots"]) for row in clean)
    assert metrics["no_shot"] == (held[0] if shots else 0)
    assert metrics["fewer_shots"] == sum(count for number, count in held.items() if number < shots)
    assert metrics["cut"] == sum(row["cut"] == "1" for row in clean) == len(clean)  # of two words each


def test_the_same_inputs_give_the_same_bytes(built, small):
    before = built.files("artifacts/fewshot") | built.files("artifacts/metrics")
    small.run("tasks.stages.fewshot", "gpt")
    assert small.files("artifacts/fewshot") | small.files("artifacts/metrics") == before


def test_fewshot_seed_changes_only_the_shots(built, small):
    small.change(fewshot__seed=4, fewshot__shots=[2, 0])
    small.run("tasks.stages.fewshot", "gpt")
    for task in ("sotu-era", "next"):
        assert rows(small, task, 0) == rows(built, task, 0)
        assert [row["id"] for row in rows(small, task, 2)] == [row["id"] for row in rows(built, task, 2)]
    likelihoods = [rows(project, "sotu-era", 2) for project in (built, small)]
    assert likelihoods[0] != likelihoods[1]


def test_fewshot_allows_no_tasks(small):
    small.change(fewshot__tasks=[])
    small.run("tasks.stages.fewshot", "gpt")
    assert small.files("artifacts/fewshot") == {}
    assert small.metrics("fewshot-gpt") == {}
    small.change(fewshot__models=[])
    small.run("tasks.stages.report")
    assert "Nothing is evaluated" in (small.root / "artifacts/report/results.md").read_text()


OPTIONS = {"before-1865": "ba", "1865-1944": "bo"}


@pytest.mark.parametrize(
    ("changes", "error", "more"),
    [
        ({"tasks": ["sotu-ear"]}, "fewshot.tasks: found 'sotu-ear'", "did you mean 'sotu-era'"),
        ({"prompts": {"sotu-ear": {"template": "{a}", "options": {}}}}, "fewshot.prompts: found 'sotu-ear'", "did you"),
        ({"tasks": ["sotu-era"] * 2}, "fewshot.tasks: found sotu-era, sotu-era", "each once"),
        (
            {"prompts": {"sotu-era": {"template": "{a}{b}", "options": OPTIONS | {"from-1945": "ku"}}}},
            "fewshot.prompts.sotu-era.template: found '{a}{b}'",
            "no {b}",
        ),
        (
            {"prompts": {"sotu-era": {"template": "{a}", "options": OPTIONS | {"from-1945": "ku " * 30 + "ku"}}}},
            "fewshot.tasks: sotu-era: the option 'ku ku",
            "expected at most 29, the model's context",
        ),
    ],
)
def test_fewshot_refuses_invalid_tasks(small, monkeypatch, changes, error, more):
    small.change(**{f"fewshot__{name}": value for name, value in changes.items()})
    before = small.files()
    monkeypatch.chdir(small.root)
    monkeypatch.setenv("PLM_TRACKING", "off")
    with pytest.raises(UserError) as refused:
        fewshot("gpt")
    assert str(refused.value).startswith(error)
    assert more in str(refused.value)
    assert small.files() == before


def test_fewshot_refuses_bidirectional_models(small):
    path = small.root / "artifacts/models/gpt/config.json"
    path.write_text(path.read_text().replace('"objective": "causal"', '"objective": "masked"'))
    sums = small.root / "artifacts/models/gpt/SHA256SUMS"
    sums.unlink()
    write_checksums(sums.parent)
    line = small.refused("tasks.stages.fewshot", "gpt")
    assert line.startswith("error: fewshot.models: gpt is a masked model")
    assert "expected bidirectional, causal, hybrid ones" in line
