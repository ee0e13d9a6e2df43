"""Evaluation examples that stand in the training text are found, told by name, and only they are removed."""

import hashlib
import json
import random
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.corpus import decontamination, shingles
from plm_core.corpus.decontamination import (
    DecontaminateConfig,
    EvaluationExamples,
    ExampleFile,
    decontaminate,
    read_examples,
)
from plm_core.corpus.document import Document

WORDS = [f"w{i}" for i in range(3000)]


def text(seed, length):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(length))


def examples(*texts, **config):
    collected = EvaluationExamples(DecontaminateConfig(**config))
    collected.add([("quiz", f"q{i}", question) for i, question in enumerate(texts)])
    return collected.index()


def document(*paragraphs, name="d"):
    return Document(name, "\n\n".join(paragraphs), "s")


def test_decontamination_names_paragraphs_of_an_example():
    question, before, after = f"{text(1, 30)} caf\u00e9", text(2, 40), text(3, 40)
    inside = document(before, f"{text(4, 9)} {question.upper()}! {text(5, 9)}", after)
    # Examples are brought into the normal form of the corpus.
    looked_for = examples(text(9, 30), unicodedata.normalize("NFD", question))
    ((kept, (removal,), (hit,)),) = decontaminate([inside], looked_for)
    assert kept.text == f"{before}\n\n{after}"
    assert (removal.document, removal.paragraph, removal.rule) == ("d", 1, "contaminated")
    assert removal.value == "quiz q1 (overlap 1.00)"
    assert (hit.evaluation, hit.example, hit.document, hit.overlap, hit.paragraphs) == ("quiz", "q1", "d", 1.0, [1])
    assert hit.text == removal.text == inside.text.split("\n\n")[1]


def test_decontamination_finds_examples_across_paragraphs():
    tokens = text(1, 40).split()
    spread = document(text(2, 20), " ".join(tokens[:17]), " ".join(tokens[17:]), text(3, 20))
    ((kept, removals, (hit,)),) = decontaminate([spread], examples(" ".join(tokens)))
    assert hit.paragraphs == [1, 2] == [r.paragraph for r in removals]
    assert kept.text == f"{text(2, 20)}\n\n{text(3, 20)}"


def test_decontamination_threshold_is_a_share_of_ngrams():
    question = text(1, 32)  # 20 n-grams of 13 words
    half = " ".join(question.split()[:22])  # 10 of them
    for overlap, removed in ((0.0, True), (0.5, True), (0.51, False), (1.0, False)):
        ((_, _, hits),) = decontaminate([document(f"{half} {text(2, 30)}")], examples(question, overlap=overlap))
        assert [hit.overlap for hit in hits] == ([0.5] if removed else [])
    # Even the lowest threshold wants one n-gram.
    twelve = " ".join(question.split()[:12])
    ((_, _, hits),) = decontaminate([document(f"{twelve} {text(2, 30)}")], examples(question, overlap=0.0))
    assert hits == []


def test_decontamination_counts_a_repeated_ngram_once():
    question = text(1, 32)
    thirteen = " ".join(question.split()[:13])
    ((_, _, (hit,)),) = decontaminate([document(*[thirteen] * 9)], examples(question, overlap=0.05))
    assert hit.overlap == 1 / 20
    assert hit.paragraphs == list(range(9))


@pytest.mark.parametrize("length", [7, 8, 12, 13])
def test_decontamination_matches_short_examples_whole(length):
    question = text(1, length)
    looked_for = EvaluationExamples(DecontaminateConfig())
    looked_for.add([("quiz", "q0", question)])
    ((_, _, hits),) = decontaminate([document(f"{text(2, 5)} {question} {text(3, 5)}")], looked_for.index())
    assert (len(looked_for), looked_for.too_short, len(hits)) == ((0, 1, 0) if length == 7 else (1, 0, 1))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=6), st.sets(st.integers(0, 8)))
def test_decontamination_treats_documents_independently(texts, leaked):
    documents = [document(*(text(i, 25) for i in paragraphs), name=f"d{n}") for n, paragraphs in enumerate(texts)]
    looked_for = examples(*(text(i, 25) for i in sorted(leaked)))
    results = list(decontaminate(documents, looked_for))
    assert results == [result for single in documents for result in decontaminate([single], looked_for)]
    for paragraphs, (kept, removals, hits) in zip(texts, results, strict=True):
        assert [i for i in paragraphs if i not in leaked] == [
            i for paragraph in kept.text.split("\n\n") for i in range(9) if paragraph == text(i, 25)
        ]
        assert [r.paragraph for r in removals] == [n for n, i in enumerate(paragraphs) if i in leaked]
        assert {hit.example for hit in hits} == {f"q{sorted(leaked).index(i)}" for i in paragraphs if i in leaked}


def test_decontamination_takes_examples_in_turns(monkeypatch):
    monkeypatch.setattr(decontamination, "WORDS_AT_ONCE", 50)
    monkeypatch.setattr(shingles, "CHARACTERS_AT_ONCE", 100)
    questions = [("quiz", f"q{i}", text(i, 20)) for i in range(7)]
    parts = list(decontamination.in_groups(iter(questions), DecontaminateConfig()))
    assert [(len(part), part.words) for part in parts] == [(3, 60), (3, 60), (1, 20)]
    whole = [document(*(text(i, 20) for i in range(9)))]
    hits = [
        hit.example for part in parts for _, _, part_hits in decontaminate(whole, part.index()) for hit in part_hits
    ]
    assert hits == [name for _, name, _ in questions]


def test_decontamination_finds_a_page_of_a_long_example():
    """A training document that holds a tenth of an example, word for word, leaks that tenth."""
    question = text(1, 1000).split()
    for start in (0, 333, 900):
        page = document(text(2, 50), " ".join(question[start : start + 100]), name=f"page {start}")
        ((kept, removals, (hit,)),) = decontaminate([page], examples(" ".join(question)))
        assert kept.text == text(2, 50)
        assert [r.paragraph for r in removals] == [1]
        assert (hit.example, hit.overlap) == ("q0", 1.0)


def test_decontamination_reports_a_shared_ngram_once():
    notice = text(1, 40)
    looked_for = examples(*(f"{notice} {text(i, 40)}" for i in range(2, 99)))
    ((_, _, hits),) = decontaminate([document(notice)], looked_for)
    assert [hit.example for hit in hits] == ["q0"]
    own = [hit.example for _, _, own_hits in decontaminate([document(text(50, 40))], looked_for) for hit in own_hits]
    assert own == ["q48"]


@pytest.mark.parametrize("count", [0, 3])
def test_decontamination_index_is_shared_between_processes(tmp_path, count):
    looked_for = EvaluationExamples(DecontaminateConfig())
    looked_for.add([("quiz", f"q{i}", text(i, 20)) for i in range(count)])
    looked_for.write_index(tmp_path / "index.joblib")
    shared = decontamination.open_index(tmp_path / "index.joblib")
    arrays = [*vars(shared).values(), *(array for table in shared.tables.values() for array in vars(table).values())]
    assert {type(array) for array in arrays if isinstance(array, np.ndarray)} == {np.memmap}
    documents = [document(text(i, 20)) for i in range(5)]
    results = list(decontaminate(documents, shared))
    assert results == list(decontaminate(documents, looked_for.index()))
    assert sum(len(hits) for _, _, hits in results) == count


def given_file(path, content):
    path.write_text(content)
    return ExampleFile("quiz", str(path), hashlib.sha256(content.encode()).hexdigest())


def test_decontamination_reads_every_text_field_of_a_file(tmp_path):
    rows = [{"premise": "a b", "hypothesis": "c", "label": 1}, {"premise": "d"}]
    lines = given_file(tmp_path / "quiz.jsonl", "\n".join(map(json.dumps, rows)))
    assert list(read_examples(lines)) == [
        ("quiz", "quiz.jsonl:1 premise", "a b"),
        ("quiz", "quiz.jsonl:1 hypothesis", "c"),
        ("quiz", "quiz.jsonl:2 premise", "d"),
    ]
    lists = given_file(tmp_path / "list.jsonl", json.dumps({"ctx": "a", "endings": ["b", "c"], "label": 1}))
    assert [(place, text) for _, place, text in read_examples(lists)] == [
        ("list.jsonl:1 ctx", "a"),
        ("list.jsonl:1 endings", "b"),
        ("list.jsonl:1 endings", "c"),
    ]
    plain = given_file(tmp_path / "quiz.txt", "one two\n\nthree\n")
    assert list(read_examples(plain)) == [("quiz", "quiz.txt:1", "one two"), ("quiz", "quiz.txt:3", "three")]
    table = given_file(tmp_path / "dev.tsv", 'sentence\tlabel\nsay "no\t0\n')
    assert list(read_examples(table)) == [
        ("quiz", "dev.tsv:2 sentence", 'say "no'),
        ("quiz", "dev.tsv:2 label", "0"),
    ]


@pytest.mark.parametrize(
    ("content", "change", "message"),
    [
        ("x", {"file": "elsewhere.jsonl"}, "elsewhere.jsonl: missing; expected the examples of quiz"),
        ("x", {"sha256": "0" * 64}, "decontaminate.examples: .* expected 0000"),
        ('{"label": 1}\n', {}, r"quiz.jsonl: holds no text; expected the examples of quiz"),
        ('{"a": "b"}\n{"a"\n', {}, r"quiz.jsonl:2: broken_json"),
    ],
)
def test_decontamination_refuses_wrong_or_empty_files(tmp_path, content, change, message):
    with pytest.raises(UserError, match=message):
        list(read_examples(replace(given_file(tmp_path / "quiz.jsonl", content), **change)))
