"""Texts and their references: tables, lists, two files of lines, packages of verses; every rule and every error."""

import gzip
import importlib.metadata
import itertools
import json
from pathlib import Path

import pytest

from plm_core.benchmarks.behaviour_checks import checks_of
from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.prompts import prompt_of
from plm_core.benchmarks.task import KINDS, ExamplesConfig, read_examples, write_examples
from plm_core.benchmarks.task_sources import counts, read_source
from plm_core.config import UserError, from_dict
from plm_core.finetuning.finetune_results import evidence, measured, signed
from plm_core.finetuning.task_heads import Predicted

PAIRS = {"kind": "translation", "a": "en", "label": "de", "score": "bleu"}
SHORT = {"kind": "summarization", "a": "source", "label": "target", "score": "rouge1+rouge2+rougeL"}
MANIFEST = Path(__file__).parents[4] / "plm_core/benchmarks/verses.json"


def read(folder, described):
    return read_source("mine", from_dict(ExamplesConfig, {"input": str(folder), **described}, "examples.mine"))


@pytest.fixture
def moses(tmp_path):
    for split, count in (("train", 30), ("valid", 3), ("test", 4)):
        (tmp_path / f"{split}.en").write_text("".join(f"the river {i}\n" for i in range(count)))
        (tmp_path / f"{split}.de").write_text("".join(f"der Fluß {i}\n" for i in range(count)))
    return tmp_path


def test_lines_of_two_files_belong_together(moses):
    # A line ends at \n alone; the last may have no end.
    (moses / "test.en").write_bytes("\ufeffone\u2028line\r\n two \nthree".encode())
    (moses / "test.de").write_text("eins\nzwei\ndrei\n")
    source = read(moses, PAIRS)
    expected = [("one\u2028line", "eins"), ("two", "zwei"), ("three", "drei")]
    assert source.splits["test"] == [
        Example(f"test-{i}", a, None, 0, answers=(Answer(b, 0),)) for i, (a, b) in enumerate(expected, start=1)
    ]
    assert (source.task.metrics, source.task.question) == (("bleu", "chrf"), "How is the text translated?")
    sizes = counts(source.task, "test", source.splits["test"])
    assert sizes == {"test_examples": 3, "test_references": 3, "test_words": 4, "test_reference_words": 3}


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("test.de", b"a\nb\nc\n", r"test\.en:4: test\.de ends before this line; expected as many lines"),
        ("test.de", b"a\n \t\nc\nd\n", r"test\.de:2: an empty line; expected a text on both sides"),
        ("test.en", b"a\nb\nc\xff\nd\n", r"test\.en:3: byte 0xff; expected UTF-8 text"),
        ("train.tsv", b"en\tde\na\tb\n", r"train\.tsv: train\.en exists too; expected one file of this split"),
        ("dev.en", b"a\n", r"valid\.en: dev\.en exists too; expected one file of this split"),
    ],
)
def test_an_error_in_lines_names_file_and_line(moses, name, content, error):
    (moses / name).write_bytes(content)
    with pytest.raises(UserError, match=error) as refused:
        read(moses, PAIRS)
    assert "\n" not in str(refused.value)


def test_a_missing_side_is_named(moses):
    (moses / "test.de").unlink()
    with pytest.raises(UserError, match=r"test\.de: missing; expected a line in it for each of test\.en"):
        read(moses, PAIRS)
    (moses / "train.en").unlink()
    with pytest.raises(UserError, match=r"no file train; expected one of train\.tsv, .*, train\.jsonl\.gz, train\.en"):
        read(moses, PAIRS)


def rows(path, *some):
    lines = "".join(json.dumps(row) + "\n" for row in some).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def test_json_lines_may_have_sentences_and_several_references(tmp_path):
    same = "this text of five words and more"
    first, second = {"source": ["One.", "", " Two."], "target": ["a", "b"], "doc": 7}, {"source": same, "target": "c"}
    for name in ("train.jsonl.gz", "dev.jsonl.gz", "test.jsonl"):
        rows(tmp_path / name, first, second | {"doc": 8}, second | {"doc": 8})
    source = read(tmp_path, SHORT)
    first, *others = source.splits["test"]
    assert first == Example("test-1", "One. Two.", None, 0, answers=(Answer("a", 0), Answer("b", 0)))
    assert [e.group for e in others] == ["test-2"] * 2  # a text in common
    assert [e.group for e in read(tmp_path, SHORT | {"group": "doc"}).splits["valid"]] == ["7", "8", "8"]
    assert source.task.metrics == ("rouge1", "rouge2", "rougeL")
    assert KINDS["summarization"].written(source.task, ["é", '"']) == '["é", "\\""]'
    # What is written is read again, and measured.
    write_examples(tmp_path / "file", source.splits["test"], source.task)
    assert read_examples(tmp_path / "file", source.task) == source.splits["test"]
    answered = Predicted(["a", "", "c"], [0.5] * 3, 0.0)
    figures = measured(source.task, source.splits["train"], source.splits["test"], answered)
    assert (figures["rouge1"], figures["baseline"]) == (pytest.approx(2 / 3), 0.0)
    row, *_ = evidence(source.task, source.splits["test"], answered, "rule")
    assert row[4:6] == ('["a", "b"]', "a")
    assert "rouge-score" in signed(source.task, source.splits["test"])


def test_an_error_in_json_lines_names_the_column(tmp_path):
    rows(tmp_path / "train.jsonl", {"source": "x", "target": "y"}, {"source": "z", "target": "y"})
    for source, target, error in (
        ("x", [], r"test\.jsonl:1: an empty list in the column 'target'; expected at least one"),
        ([], "a", r"test\.jsonl:1: nothing in the column 'source'; expected a text"),
        (["x", 3], "a", r"test\.jsonl:1: found int in the column 'source'; expected text"),
    ):
        rows(tmp_path / "test.jsonl", {"source": source, "target": target})
        with pytest.raises(UserError, match=error):
            read(tmp_path, SHORT)


def test_what_does_not_fit_the_kind_is_refused(moses):
    task = read(moses, PAIRS).task
    for more in ({}, {"references": []}, {"references": "y"}):
        rows(moses / "examples", {"id": "x", "a": "b"} | more)
        with pytest.raises(UserError, match=r"examples:1: .*expected an example of mine"):
            read_examples(moses / "examples", task)
    (moses / "checks.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"checks\.jsonl: checks of mine, a translation; expected a classification"):
        checks_of(task, [], moses)
    with pytest.raises(UserError, match="mine is of the kind translation"):
        prompt_of(task, {})
    with pytest.raises(UserError, match="score: found 'rouge1'; expected names among bleu, chrf"):
        read(moses, PAIRS | {"score": "rouge1"})


@pytest.fixture
def verses(tmp_path, monkeypatch):
    """Two packages whose files would fail if they were imported."""
    keys = [book * 1_000_000 + chapter * 1000 + 1 for book in (1, 19) for chapter in range(1, 61)]
    for name, words, own in (("old-words", "thou", keys), ("new-words", "you", [*keys, 66001001])):
        ends = list(itertools.accumulate(len(f"{words} {key}  \n") for key in own))
        sides = (zip(own, side, strict=True) for side in ([0, *ends[:-1]], ends))
        tables = ["{\n" + "".join(f" {key}: {place},\n" for key, place in side) + " },\n" for side in sides]
        text = "".join(f"{words} {key}  \\n" for key in own)
        (tmp_path / name.replace("-", "_")).mkdir()
        file = tmp_path / name.replace("-", "_") / "plain_text_readers_bible.py"
        file.write_text(f'raise SystemExit\nBible("""{text}""", {"".join(tables)} {{\n 1: {{\n1: 2,\n}},\n}})')
        (tmp_path / f"{file.parent.name}-1.0.dist-info").mkdir()
        (tmp_path / f"{file.parent.name}-1.0.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "pin.json"
    packages = {"old": "old-words==1.0", "new": "new-words==1.0", "later": "new-words==2.0", "other": "other==1.0"}
    path.write_text(json.dumps({"packages": packages, "left_out": [19], "license": "x", "homepage": "y"}))
    return path


def test_verses_of_two_packages_are_split_by_chapter(verses):
    source = read(verses, PAIRS | {"a": "old", "label": "new"})
    assert source.counts == {"verses_of_one_translation": 1, "verses_of_books_left_out": 60}
    every = sorted((e for some in source.splits.values() for e in some), key=lambda e: e.id)
    assert every[7] == Example("01008001", "thou 1008001", None, 0, answers=(Answer("you 1008001", 0),), group="01008")
    assert len(every) == 60
    for label, error in (
        ("modern", r"pin\.json: has no translation 'modern'; expected one of old, new"),
        ("later", r"new-words is version 1\.0; expected 2\.0 \(pip install --no-deps new-words==2\.0\)"),
        ("other", r"pin\.json: other is not installed; expected 1\.0"),
    ):
        with pytest.raises(UserError, match=error):
            read(verses, PAIRS | {"a": "old", "label": label})


def test_the_published_verses_are_read():
    for pinned in json.loads(MANIFEST.read_text())["packages"].values():
        name, version = pinned.split("==")
        if version not in [installed.version for installed in importlib.metadata.distributions(name=name)]:
            pytest.skip(f"{pinned}, which has the verses, is not installed")
    source = read(MANIFEST, PAIRS | {"a": "wyc", "label": "web", "score": "bleu+chrf"})
    assert {split: len(some) for split, some in source.splits.items()} == {"train": 23627, "valid": 1381, "test": 3524}
    groups = [{e.group for e in some} for some in source.splits.values()]
    assert sum(map(len, groups)) == len(set().union(*groups))
    verse = next(e for e in source.splits["train"] if e.id == "01001001")
    assert verse.a == "In the bigynnyng God made of nouyt heuene and erthe."
    assert verse.answers[0].text == "In the beginning God created the heavens and the earth."
