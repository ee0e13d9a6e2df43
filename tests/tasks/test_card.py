"""The dataset card says what the stages before it read, removed and kept; its figures are those of the files."""

import hashlib
import json
import random
import re
from datetime import date

import pytest
from markdown_it import MarkdownIt
from projects import Project, source

from plm_core.corpus.document import read_documents
from plm_core.corpus.removals import read_removals

WORDS = [f"w{i}" for i in range(3000)]


def paragraph(seed, length=40):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(length))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with two sources, in which something happened by every rule, up to the card."""
    project = Project(source(tmp_path_factory.mktemp("card") / "project"))
    quiz = paragraph("quiz", 30)
    (project.root / "quiz.txt").write_text(quiz)
    own = {f"{n:02}": [paragraph(f"{n}-{i}") for i in range(3)] for n in range(20)}
    own["01"] = own["00"]  # a document twice
    own["02"][1] = own["00"][1].replace(" ", "  ").upper()  # a paragraph twice
    own["03"][1] = own["00"][2] + " and more"  # nearly twice
    own["04"][1] = "short"
    own["05"] = ["tiny"]
    own["19"].append(f"they asked: {quiz}")
    own["18"].append(f"{paragraph('again')} {quiz}")
    letter = paragraph("letter") + "\n\n<script>|a*b`c`|</script>![x](https://example.org/x.png)"
    for name, data in (
        ("own", "".join(json.dumps({"text": "\n\n".join(text)}) + "\n" for text in own.values()) + '{"text": 7}\n'),
        ("letters", json.dumps({"text": letter}) + "\n"),
    ):
        (project.root / name).mkdir()
        (project.root / name / "x.jsonl").write_text(data)
    folder = {"reader": "folder", "max_quarantined": 0.5}
    project.change(
        sources={"own": folder | {"input": "own", "license": "CC0"}, "letters": folder | {"input": "letters"}},
        clean={"paragraphs": {"words": {"min": 2}}, "languages": None},
        split={"valid": 0.2, "test": 0.2, "salt": date(2024, 1, 1)},  # which YAML makes of 2024-01-01
        decontaminate__examples=[
            {"name": "quiz", "file": "quiz.txt", "sha256": hashlib.sha256(quiz.encode()).hexdigest()}
        ],
    )
    for command in (["ingest", "own"], ["ingest", "letters"], ["clean"], ["deduplicate"], ["card"]):
        project.run(f"tasks.stages.{command[0]}", *command[1:])
    return project


def test_model_card_figures_match_the_files(project):
    card = json.loads((project.root / "artifacts/card/card.json").read_text())
    corpus = project.root / "artifacts/corpus"
    assert {name: (s["records"], s["documents"]) for name, s in card["sources"].items()} == {
        "letters": (1, 1),
        "own": (21, 20),
    }
    assert [(r["reason"], r["records"]) for r in card["quarantined"]["own"]] == [("missing_text", 1)]
    assert card["quarantined"]["letters"] == []
    removals = [r for name in ("clean", "deduplicate") for r in read_removals(corpus / f"removed/{name}.parquet")]
    assert {(r["level"], r["rule"], r["texts"]) for r in card["removed"]} == {
        ("paragraphs", "words", 3),
        ("documents", "empty", 1),
        ("documents", "exact_duplicate", 1),
        ("paragraphs", "exact_duplicate", 1),
        ("paragraphs", "near_duplicate", 1),
        ("paragraphs", "contaminated", 2),
    }
    assert sum(r["texts"] for r in card["removed"]) == len(removals)
    assert sum(r["bytes"] for r in card["removed"]) == sum(len(r.text.encode()) for r in removals)
    for split, figures in card["splits"].items():
        documents = list(read_documents(corpus / f"splits/{split}.parquet"))
        assert figures["documents"] == len(documents) == sum(figures["document_words"].values())
        assert figures["words"] == sum(len(d.text.split()) for d in documents)
        assert figures["bytes"] == sum(len(d.text.encode()) for d in documents)
        assert figures["paragraphs"] == sum(d.text.count("\n\n") + 1 for d in documents)
        assert figures["paragraphs"] == sum(figures["paragraph_words"].values())
    (pair,) = card["repeated"]
    assert (pair["kept"], pair["removed"]) == ("own/x.jsonl#1#2", "own/x.jsonl#4#1")
    assert pair["removed_text"] == f"{pair['kept_text']} and more"
    assert card["contamination"]["found"] == {"quiz": 1}
    hits = {(hit["example"], hit["document"], hit["overlap"]) for hit in card["contamination"]["examples"]}
    assert hits == {("quiz.txt:1", f"own/x.jsonl#{n}", 1.0) for n in (19, 20)}


def test_model_card_markdown_has_the_figures_escaped(project):
    text = (project.root / "artifacts/card/README.md").read_text()
    assert text.startswith('---\nlanguage: []\nlicense: other\nlicense_name: "CC0; not stated"\n')
    assert "| own | `folder`: `own` | CC0 | 21 | 20 |" in text
    assert "1 of 22 records could not be read" in text
    assert "`own/x.jsonl:21`" in text
    assert "quiz 1." in text
    assert "](lengths.svg)" in text
    assert "<svg" in (project.root / "artifacts/card/lengths.svg").read_text()
    # What is in a text is neither a cell, nor markup.
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert {line.replace("\\|", "").count("|") for line in rows} <= {3, 4, 5, 6, 7}
    assert "<script>\\|a*b`c`\\|</script>![x](https://example.org/x.png)``" in text
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert {*re.findall('src="(.*?)"', page)} == {"lengths.svg"}
    assert "href" not in page


def test_nothing_of_the_run_is_in_the_card(project):
    before = project.files("artifacts/card")
    project.run("tasks.stages.card")
    assert project.files("artifacts/card") == before
