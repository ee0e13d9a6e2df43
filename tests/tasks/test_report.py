"""The report compares models of several papers: one column a quantity, the best in bold, blanks where there is none."""

import json
import re

import pytest
from projects import Project, source

from tasks.seam import paths

MODELS = {
    "gpt": ({"bits_per_byte": 1.5, "perplexity": 99.0}, 0.713, 0.513),
    "wide": ({"bits_per_byte": 1.25, "perplexity": 37.0}, 0.7134, 0.537),
    "bert": ({"pseudo_bits_per_byte": 0.75}, 0.5, 0.914),
    "xlnet": ({"fixed_order_bits_per_byte": 1.75, "mean_order_bits_per_byte": 2.25}, 0.6, 0.7),
}
OBJECTIVES = {
    "gpt": {"name": "causal"},
    "wide": {"name": "causal"},
    "bert": {"name": "masked", "next_sentence": True},
    "xlnet": {"name": "permutation", "predict": 6},
}
CORPUS = {
    "clean": {"read_documents": 37, "read_bytes": 9999, "removed_paragraphs": 7, "removed_paragraphs_words": 7},
    "deduplicate": {f"{split}_{what}": 13 for split in ("train", "valid", "test") for what in ("documents", "bytes")},
    "tokenizer": {"vocab_size": 307, "bytes_per_token": 1.5},
    "pack": {"train_tokens": 99, "valid_tokens": 13},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A project with the results of four models on two tasks."""
    project = Project(source(tmp_path_factory.mktemp("results") / "project"))
    pretrain = {
        name: {"architecture": name if name != "wide" else "gpt", "objective": objective}
        for name, objective in OBJECTIVES.items()
    }
    project.change(models=list(MODELS), pretrain=pretrain)
    files = {f"metrics/{name}.json": numbers for name, numbers in CORPUS.items()}
    for name, (likelihoods, *accuracies) in MODELS.items():
        trained = {"parameters": 12345, "positions": 6789, "predictions": 987, "best_step": 26}
        files[f"metrics/pretrain-{name}.json"] = trained
        files[f"metrics/evaluate-{name}.json"] = likelihoods | {"nats_per_token": 3.0, "tokens": 99, "bytes": 157}
        for task, accuracy in zip(("sotu-era", "sotu-next"), accuracies, strict=True):
            scores = {"accuracy": accuracy, "macro_f1": 0.1, "matthews": -0.2, "majority_accuracy": 0.4}
            files[f"metrics/finetune-{name}-{task}.json"] = scores | {"examples": 37, "train_examples": 99}
        filled = {"cloze": "Peace ___ <all>.", "fills": [["▁to", 0.5], ["\n", 0.25]]}
        files[f"samples/{name}.json"] = [filled if name == "bert" else {"prompt": "Peace", "continuation": " to\nall"}]
        for curve in (name, f"{name}-sotu-era", f"{name}-sotu-next"):
            files[f"curves/{curve}.csv"] = "step,loss,valid_loss\n2,3.5,\n4,3.25,3.75\n"
    for path, content in files.items():
        target = project.root / "artifacts" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content))
    project.run("tasks.report")
    return project


def table(text, heading):
    """The cells of the first table below a heading, as a dict of rows by their first cell."""
    lines = text.split(f"{heading}\n", 1)[1].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


@pytest.fixture(scope="module")
def page(results):
    return (results.root / "artifacts/report/report.md").read_text()


def test_the_models_are_described(page):
    found = table(page, "## Models")
    assert list(found) == list(MODELS)
    assert found["wide"]["architecture"] == "gpt"
    objectives = ["causal", "causal", "masked (next_sentence: true)", "permutation (predict: 6)"]
    assert [row["objective"] for row in found.values()] == objectives
    assert list(found["bert"].values())[3:] == ["12,345", "6,789", "987", "26"]


def test_every_quantity_has_a_column_of_its_own_and_the_best_in_it_is_bold(page):
    columns = {
        "bits per byte": ["1.5000", "**1.2500**", "", ""],
        "pseudo bits per byte": ["", "", "0.7500", ""],
        "fixed order bits per byte": ["", "", "", "1.7500"],
        "mean order bits per byte": ["", "", "", "2.2500"],
        "perplexity a token": ["99.0", "37.0", "", ""],
    }
    found = table(page, "## Held-out likelihood")
    assert {name: [row[name] for row in found.values()] for name in columns} == columns
    assert list(found["gpt"]) == ["model", *columns]
    assert "compare within a column, never across" in page
    assert "of the first 17 tokens of each document only" in page


def test_the_accuracies_and_their_mean_are_compared(page):
    found = table(page, "## Fine-tuning")
    assert [list(row.values())[1:] for row in found.values()] == [
        ["**0.713**", "0.513", "0.613"],
        ["**0.713**", "0.537", "0.625"],
        ["0.500", "**0.914**", "**0.707**"],
        ["0.600", "0.700", "0.650"],
    ]
    one = table(page, "**sotu-next**: Does paragraph B follow paragraph A in the same speech?\n")
    assert [row["accuracy"] for row in one.values()] == ["0.513", "0.537", "**0.914**", "0.700"]
    # Where all are alike there is no best.
    assert {row["macro-F1"] for row in one.values()} == {"0.100"}


def test_samples_are_texts_or_filled_blanks(results, page):
    assert page.count("~~~~\nPeace to all\n~~~~") == 3
    assert "~~~~\nPeace ___ <all>.\n'▁to' 0.500, '\\n' 0.250\n~~~~" in page
    html = (results.root / "artifacts/report/report.html").read_text()
    assert "Peace ___ &lt;all&gt;." in html
    assert html.count("<svg") == 4


def test_speed_is_shown_from_beside_the_report_and_is_no_part_of_it(results, page):
    html = (results.root / "artifacts/report/report.html").read_text()
    (shown,) = re.findall('<object data="([^"]+)" type="text/html"', html)
    assert (results.root / "artifacts/report" / shown).resolve() == results.root / paths.METERS / "index.html"
    assert f"]({shown})" in page
    before = results.files("artifacts/report")
    (results.root / paths.METERS).mkdir()
    (results.root / paths.METERS / "index.html").write_text("<p>fast</p>")
    results.run("tasks.report")
    assert results.files("artifacts/report") == before


def test_models_of_one_paper_need_no_warning_and_no_task_is_said(results, tmp_path):
    project = results.copied(tmp_path / "project")
    project.change(models=["gpt", "wide"], finetune__tasks=[])
    project.run("tasks.report")
    text = (project.root / "artifacts/report/report.md").read_text()
    assert list(table(text, "## Held-out likelihood")["gpt"]) == ["model", "bits per byte", "perplexity a token"]
    assert "never across" not in text
    assert "tokens of each document only" not in text
    assert "No GLUE-like task is named in `finetune.tasks`." in text
