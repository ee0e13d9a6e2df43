"""Stage clean over several sources: one order, every document somewhere, every count true, the same bytes again."""

import pytest
from projects import Project, source

from plm_core.corpus.document import Document, read_documents, write_documents
from plm_core.corpus.removals import read_removals

CLEAN = "artifacts/corpus/clean.parquet"
REMOVED = "artifacts/corpus/removed/clean.parquet"
LETTERS = [
    Document("letters/a", "One two three.\n\nOne\n\nWrite to me@home.org soon.", "letters"),
    Document("letters/c", "Word", "letters", {"year": 1790}),
    Document("letters/d", " \n\n", "letters"),
]


@pytest.fixture
def project(tmp_path, documents):
    """A project in which two sources were ingested; nothing else has run."""
    project = Project(source(tmp_path / "project"))
    made_up = [Document(f"made-up/{d.id}", d.text, "made-up", d.metadata) for d in documents]
    # The second source's ids come between those of the first.
    write_documents(project.root / "artifacts/corpus/raw/made-up.parquet", [Document("a", "a b", "made-up"), *made_up])
    write_documents(project.root / "artifacts/corpus/raw/letters.parquet", LETTERS)
    own = {"reader": "folder", "input": "data"}
    project.change(clean__mask=["email"], sources=dict.fromkeys(("letters", "made-up"), own))
    return project


def test_clean_stage_accounts_for_every_paragraph(project, documents):
    out, _ = project.run("tasks.stages.clean")
    kept = list(read_documents(project.root / CLEAN))
    removed = list(read_removals(project.root / REMOVED))
    assert [d.id for d in kept] == ["a", "letters/a", *(f"made-up/{d.id}" for d in documents)]
    assert kept[1] == Document("letters/a", "One two three.\n\nWrite to email@example.com soon.", "letters")
    assert [d.text for d in kept[2:]] == [d.text for d in documents]
    assert [(r.document, r.paragraph, r.source, r.rule, r.value, r.text) for r in removed] == [
        ("letters/a", 1, "letters", "words", "1 < min 2", "One"),
        ("letters/c", 0, "letters", "words", "1 < min 2", "Word"),
        ("letters/c", None, "letters", "empty", "0 of 1 paragraphs kept", ""),
        ("letters/d", None, "letters", "empty", "0 of 0 paragraphs kept", ""),
    ]
    assert "documents: 39 of 41, paragraphs: 262 of 264; removed: {'documents_empty': 2, 'paragraphs_words': 2}" in out


def test_clean_stage_metrics_add_up_over_sources(project):
    project.run("tasks.stages.clean")
    metrics = project.metrics("clean")
    total = {name: count for name, count in metrics.items() if "/" not in name}
    size = metrics["read_bytes"]
    assert total == {
        "read_documents": 41,
        "read_paragraphs": 264,
        "read_bytes": size,
        "kept_documents": 39,
        "kept_paragraphs": 262,
        "kept_bytes": size - len("One\n\nWordme@home.org \n\n") + len("email@example.com"),
        "removed_documents": 2,
        "removed_documents_empty": 2,
        "removed_paragraphs": 2,
        "removed_paragraphs_words": 2,
        "removed_paragraphs_with_document": 0,
        "masked_email": 1,
    }
    for name, count in total.items():
        assert sum(metrics.get(f"{source}/{name}", 0) for source in ("letters", "made-up")) == count
    assert metrics["letters/removed_documents_empty"] == 2
    assert "made-up/removed_documents" not in metrics


def test_languages_are_counted_and_remembered(project):
    speech = Document("z", "The state of the Union is good, and I thank the Congress for what it has done.", "speeches")
    rede = Document("y", "Die Lage der Nation ist gut, und ich danke dem Kongress für seine Arbeit.", "speeches")
    write_documents(project.root / "artifacts/corpus/raw/speeches.parquet", [rede, speech])
    project.change(clean__languages={"keep": ["en"]}, sources__speeches={"reader": "folder", "input": "data"})
    project.run("tasks.stages.clean")
    metrics = project.metrics("clean")
    assert (metrics["speeches/language_en"], metrics["speeches/language_de"]) == (1, 1)
    assert metrics["speeches/removed_documents_language"] == 1
    # Two of the 43 have no text.
    assert sum(count for name, count in metrics.items() if name.startswith("language_")) == 41
    by_id = {d.id: d.metadata for d in read_documents(project.root / CLEAN)}
    assert by_id["z"] == {"detected_language": "en"}
    assert "y" not in by_id


def test_clean_stage_keeps_the_old_corpus_when_nothing_is_left(project):
    project.run("tasks.stages.clean")
    before = project.files()
    project.change(clean__documents={"words": {"min": 9999}})
    _, err = project.run("tasks.stages.clean", code=2)
    after = project.files()
    assert {name for name in after if after[name] != before[name]} == {f"{REMOVED}/00000.parquet"}
    (line,) = err.splitlines()
    assert line.startswith(
        "error: clean: none of 41 documents is left (removed: {'documents_empty': 2, 'documents_words': 39"
    )
    assert f"see {REMOVED}" in line
    assert sum(r.rule == "words" and r.paragraph is None for r in read_removals(project.root / REMOVED)) == 39


def test_clean_stage_refuses_bad_raw_documents_by_name(project):
    raw = project.root / "artifacts/corpus/raw"
    write_documents(raw / "letters.parquet", [Document("x", "a b", "letters"), Document("w", "a b", "letters")])
    assert "letters.parquet, artifacts/corpus/raw/made-up.parquet: the id 'w' comes after" in project.refused(
        "tasks.stages.clean"
    )
    (raw / "letters.parquet").write_bytes(b"PAR1 no parquet PAR1")
    assert project.refused("tasks.stages.clean").startswith("error: artifacts/corpus/raw/letters.parquet: damaged")
    (raw / "letters.parquet").unlink()
    assert project.refused("tasks.stages.clean").startswith("error: artifacts/corpus/raw/letters.parquet: missing")
    for path in raw.iterdir():
        path.unlink()
    raw.rmdir()
    assert project.refused("tasks.stages.clean").startswith("error: artifacts/corpus/raw: missing; run the stage")


def test_clean_stage_ignores_removed_sources(project):
    project.change(sources__letters=...)
    out, _ = project.run("tasks.stages.clean")
    assert "artifacts/corpus/raw/letters.parquet: belongs to no source in the parameters (sources); not read" in out
    assert {d.source for d in read_documents(project.root / CLEAN)} == {"made-up"}
