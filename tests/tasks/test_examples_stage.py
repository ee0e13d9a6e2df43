"""The stage examples as a process: its files and metrics, the same bytes again, one line for what cannot be used."""

import json

import pytest
from projects import Project, source

from plm_core.benchmarks.example_readers import file_of
from plm_core.benchmarks.task import read_examples, read_task
from plm_core.shared.files import verify_checksums

TICKETS = {
    "input": "tickets",
    "kind": "classification",
    "a": "text",
    "label": "kind",
    "labels": ["c++", "other"],
    "score": "accuracy+f1:other",
    "question": "What is it about?",
}


@pytest.fixture
def project(tmp_path):
    """A project with a task of its own, five of whose test texts are also in its training set."""
    project = Project(source(tmp_path / "project"))
    (project.root / "tickets").mkdir()
    for split, numbers in (("train", range(60)), ("test", range(55, 68))):
        lines = [f'say "no {n}\t{"c++" if n % 3 else "other"}' for n in numbers]
        (project.root / f"tickets/{split}.tsv").write_text("\n".join(["text\tkind", *lines]))
    project.change(examples={"tickets": TICKETS})
    return project


def test_custom_task_examples_are_reproducible(project):
    out, err = project.run("tasks.stages.examples", "tickets")
    assert err == ""
    before = project.files()
    folder = project.root / "artifacts/examples/tickets"
    assert {path.name for path in folder.iterdir()} == {
        *("task.json", "train.jsonl", "valid.jsonl", "test.jsonl", "checks.jsonl", "SHA256SUMS")
    }
    verify_checksums(folder)
    task = read_task(folder)
    assert (task.question, task.score) == ("What is it about?", "accuracy+f1:other")
    splits = {split: read_examples(file_of(folder, split), task) for split in ("train", "valid", "test")}
    assert [e.a for e in splits["test"]] == [f'say "no {n}' for n in range(55, 68)]
    metrics = project.metrics("examples-tickets")
    assert {split: metrics[f"{split}_examples"] for split in splits} == {s: len(some) for s, some in splits.items()}
    assert metrics["train_examples"] + metrics["valid_examples"] == 60
    assert (metrics["test_label_c_2b_2b"], metrics["test_label_other"]) == (9, 4)
    assert metrics["test_also_in_train"] + metrics["test_also_in_valid"] == 5
    assert "the same texts: " in out
    project.run("tasks.stages.examples", "tickets")
    assert project.files() == before


def test_groups_of_test_that_are_also_in_train_are_a_warning(project):
    for split, numbers in (("train", range(60)), ("test", range(60, 68))):
        lines = [f"number {n}\t{'c++' if n % 3 else 'other'}\tp{n % 7}" for n in numbers]
        (project.root / f"tickets/{split}.tsv").write_text("\n".join(["text\tkind\twho", *lines]))
    project.change(examples={"tickets": TICKETS | {"group": "who"}})
    _, err = project.run("tasks.stages.examples", "tickets")
    assert err.startswith("warning: tickets: 6 groups of test are also in train: the scores do not show ")


def test_custom_checks_are_copied_and_errors_name_the_line(project):
    """Only the word of letters alone can have a typo: "say" is too short, and numbers have none."""
    own = {"id": "plus", "check": "names", "a": "say c++", "expect": {"label": "c++"}}
    path = project.root / "tickets/checks.jsonl"
    path.write_text(json.dumps(own) + "\n")
    project.run("tasks.stages.examples", "tickets")
    made = (project.root / "artifacts/examples/tickets/checks.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in made] == [own]
    assert project.metrics("examples-tickets")["checks"] == 1
    path.write_text(json.dumps(own) + "\n" + json.dumps(own | {"expect": {"label": "c--"}}) + "\n")
    error = project.refused("tasks.stages.examples", "tickets")
    assert "tickets/checks.jsonl:2: expect.label: found 'c--'; expected one of c++, other" in error


def test_an_own_copy_of_glue_that_was_cut_is_named_in_output_and_metrics(project):
    folder = project.root / "RTE"
    folder.mkdir()
    lines = [f"{n}\tA {n}.\tB.\t{'not_' * (n % 2)}entailment" for n in range(37)]
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")
    project.change(examples={"rte": {"input": "RTE"}})
    _, err = project.run("tasks.stages.examples", "rte")
    assert err.splitlines() == [
        "warning: rte: train has 37 rows, but 2,490 are published; scores are not comparable with the literature",
        "warning: rte: dev has 37 rows, but 277 are published; scores are not comparable with the literature",
    ]
    metrics = project.metrics("examples-rte")
    assert (metrics["train_rows"], metrics["train_rows_published"]) == (37, 2490)
    assert metrics["test_also_in_train"] + metrics["test_also_in_valid"] == 37


def test_invalid_example_row_is_one_line_and_no_file(project):
    path = project.root / "tickets/test.tsv"
    path.write_text(path.read_text().replace("\tother", "\tothr", 1))
    error = project.refused("tasks.stages.examples", "tickets")
    assert error == (
        "error: tickets/test.tsv:4: the label 'othr' in the column 'kind'; "
        "expected one of c++, other; did you mean 'other'?"
    )
    assert not (project.root / "artifacts/examples").exists()


def test_the_corpus_gives_the_examples_of_its_splits(built):
    folder = built.root / "artifacts/examples/next"
    task = read_task(folder)
    assert json.loads((folder / "task.json").read_text())["labels"] == ["other", "next"]
    for split in ("train", "valid", "test"):
        examples = read_examples(file_of(folder, split), task)
        assert examples
        assert built.metrics("examples-next")[f"{split}_examples"] == len(examples)
        assert {e.id.split("#")[0].split("/")[0] for e in examples} == {"own"}
