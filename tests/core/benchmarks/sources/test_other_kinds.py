"""Columns of CoNLL, SQuAD's JSON and texts to choose from: published or a team's own, every rule and every error."""

import csv
import json

import pytest

from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.task import ExamplesConfig, read_examples, write_examples
from plm_core.benchmarks.task_sources import counts, read_source, shared_text_counts
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError, from_dict

NER = {"kind": "token_classification", "labels": ["PER", "LOC"], "score": "entity_f1"}
ASKED = {"kind": "question_answering", "score": "exact_match+answer_f1"}
CHOICE = {
    "kind": "multiple_choice",
    "a": "context",
    "b": "question",
    "choices": ["one", "two", "three"],
    "label": "gold",
    "score": "accuracy",
}
SENTENCES = "Bato NNP B-PER\nis VBZ O\nin IN O\nNeu NNP B-LOC\nLimu NNP I-LOC\n\nDine NN O\n\n"


def read(folder, described, name="mine"):
    return read_source(name, from_dict(ExamplesConfig, {"input": str(folder), **described}, f"examples.{name}"))


def questions(*given, **more):
    """A file of one paragraph; each question has its id and where its answers stand."""
    context = more.get("context", "Bafo is in Limu.")
    qas = [
        {"id": i, "question": f"Who {i}?", "answers": [{"text": t, "answer_start": s} for t, s in answers]} | more
        for i, answers in given
    ]
    return json.dumps({"version": "1.1", "data": [{"title": "x", "paragraphs": [{"context": context, "qas": qas}]}]})


@pytest.fixture
def ner(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.conll").write_text(SENTENCES)
    return tmp_path


@pytest.fixture
def squad(tmp_path):
    for split, ids in (("train", "abcdefghijkl"), ("test", "mno")):
        (tmp_path / f"{split}.json").write_text(questions(*((i, [("Limu", 11), ("in Limu", 8)]) for i in ids)))
    return tmp_path


@pytest.fixture
def choice(tmp_path):
    rows = [[f"text {i}", "Who?", f"a{i}", f"b{i}", f"c{i}", str(i % 3)] for i in range(24)]
    for split, some in (("train", rows), ("test", rows[:5])):
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["context", "question", "one", "two", "three", "gold"], *some])
    return tmp_path


def test_tagging_columns_become_sentences_with_tags(ner):
    text = (ner / "valid.conll").read_text()
    (ner / "valid.conll").write_text(f"{text}-DOCSTART- -X- O\n{text}-DOCSTART- -X- O\n\n{text}")
    # Tabs, CRLF, a byte-order mark and no line end at the end are read all the same.
    other = "\ufeff" + SENTENCES.rstrip("\n").replace(" ", "\t").replace("\n", "\r\n")
    (ner / "train.conll").write_bytes(other.encode())
    source = read(ner, NER)
    assert [(e.a, e.tags) for e in source.splits["train"]] == [(e.a, e.tags) for e in source.splits["test"]]
    assert [e.group for e in source.splits["valid"]] == ["", "", "valid-1", "valid-1", "valid-2", "valid-2"]
    assert source.task.labels == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    assert source.splits["test"] == [
        Example("test-1", "Bato is in Neu Limu", None, 0, tags=(1, 0, 0, 3, 4)),
        Example("test-2", "Dine", None, 0, tags=(0,)),
    ]
    assert source.task.question == "Which words name PER, LOC?"
    assert counts(source.task, "test", source.splits["test"]) == {
        "test_examples": 2,
        "test_words": 6,
        "test_entities_PER": 1,
        "test_entities_LOC": 1,
    }


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "Bato NNP B-PERS",
            r"2: the tag 'B-PERS'; expected one of O, B-PER, I-PER, B-LOC, I-LOC; did you mean 'B-PER'",
        ),
        ("Bato NNP I-PER", r"2: I-PER begins an entity; expected B-PER \(tags are IOB2\)"),
        ("Bato", r"2: found 'Bato'; expected a word and its tag"),
        ("Bato B-PER", r"2: 2 columns; expected 3, as in the lines before"),
    ],
)
def test_tagging_error_names_the_line(ner, line, error):
    (ner / "train.conll").write_text(f"a b O\n{line}\n\n{SENTENCES}")
    with pytest.raises(UserError, match=rf"train\.conll:{error}"):
        read(ner, NER)


def test_tagging_names_invalid_utf8(ner):
    (ner / "train.conll").write_bytes(b"a O\n\xff O\n")
    with pytest.raises(UserError, match=r"train\.conll:2: byte 0xff; expected UTF-8"):
        read(ner, NER)


def test_tagging_names_a_type_that_never_begins(ner):
    with pytest.raises(UserError, match=r"no example of the class 'B-ORG' to train on; .*B-PER, B-LOC, B-ORG"):
        read(ner, NER | {"labels": ["PER", "LOC", "ORG"]})


def test_conll_2003_tags_become_iob2(tmp_path):
    """-DOCSTART- is no sentence; I-X begins an entity, and B-X one right behind another of its type."""
    original = (
        "-DOCSTART- -X- O O\n\nBato NNP I-NP I-PER\nDine NNP I-NP I-PER\nToku NNP I-NP B-PER\nLimu NNP I-NP I-LOC\n"
        "EU NNP I-NP I-ORG\nx NN I-NP I-MISC\n\na b c O\n"
    )
    plain = original.replace("I-PER\nDine NNP I-NP I-PER", "B-PER\nDine NNP I-NP I-PER")
    for of in ("LOC", "ORG", "MISC"):
        plain = plain.replace(f"I-{of}", f"B-{of}")
    sources = []
    for folder, names, text in (
        ("a", ("eng.train", "eng.testa", "eng.testb"), original),
        ("b", ("train.txt", "valid.txt", "test.txt"), plain),
    ):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(text)
        sources.append(read(tmp_path / folder, {}, "conll2003"))
    assert sources[0].splits == sources[1].splits
    (example, _), labels = sources[0].splits["valid"], sources[0].task.labels
    assert [e.group for e in sources[0].splits["valid"]] == ["valid-1", "valid-1"]
    assert [labels[tag] for tag in example.tags] == ["B-PER", "I-PER", "B-PER", "B-LOC", "B-ORG", "B-MISC"]
    assert sources[0].counts == sources[1].counts | {f"{part}_tags_from_iob1": 4 for part in ("train", "valid", "test")}
    assert sources[1].counts["valid_document_starts"] == 1
    assert sources[0].warnings[1] == (
        "conll2003: valid has 2 rows, but 3,250 are published; scores are not comparable with the literature"
    )
    (tmp_path / "a/eng.testa").unlink()
    with pytest.raises(UserError, match=r"eng\.testa \(or valid\.txt\): missing; expected .* folder CoNLL-2003"):
        read(tmp_path / "a", {}, "conll2003")


def test_question_answering_json_has_text_and_answers(squad):
    source = read(squad, ASKED)
    answers = (Answer("Limu", 11), Answer("in Limu", 8))
    text = "test.json:data[0].paragraphs[0]"  # of a single document each text is a group
    assert source.splits["test"][1] == Example("n", "Who n?", "Bafo is in Limu.", 0, answers=answers, group=text)
    assert source.task.metrics == ("exact_match", "answer_f1")
    assert counts(source.task, "test", source.splits["test"]) == {"test_examples": 3, "test_unanswerable": 0}
    assert len(source.splits["train"]) + len(source.splits["valid"]) == 12


def test_questions_of_one_document_are_a_group(squad):
    documents = [json.loads(questions((i, [("Limu", 11)])))["data"][0] for i in "mno"]
    documents[0]["paragraphs"] += documents.pop()["paragraphs"]
    (squad / "test.json").write_text(json.dumps({"data": documents}))
    assert [(e.id, e.group) for e in read(squad, ASKED).splits["test"]] == [
        ("m", "test.json:data[0]"),
        ("o", "test.json:data[0]"),
        ("n", "test.json:data[1]"),
    ]


def test_unanswerable_questions_are_optional(squad):
    (squad / "test.json").write_text(questions(("m", [])))
    with pytest.raises(UserError, match=r"test\.json:data\[0\]\.paragraphs\[0\]\.qas\[0\]: no answer to 'm'"):
        read(squad, ASKED)
    source = read(squad, ASKED | {"unanswerable": True})
    assert source.splits["test"][0].answers == ()
    assert counts(source.task, "test", source.splits["test"])["test_unanswerable"] == 1
    # As SQuAD 2.0 has it: what only seems to be an answer is told beside, and does not count.
    (squad / "test.json").write_text(questions(("m", []), is_impossible=True, plausible_answers=[{"text": "x"}]))
    assert read(squad, ASKED | {"unanswerable": True}).splits["test"][0].answers == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            questions(("m", [("Limu", 10)])),
            r"qas\[0\]\.answers\[0\]: at answer_start 10: found ' Lim'; expected .*'Limu'",
        ),
        (questions(("m", [("Limu", "11")])), r"answers\[0\]\.answer_start: found '11'; expected a character"),
        (questions(("a", [("Limu", 11)])), r"qas\[0\]: the id 'a' was used before, at .*train\.json:data\[0\]"),
        (questions(("m", [("Limu", 11)]), question=" "), r"qas\[0\]\.question: found ' '; expected a text"),
        (questions(("m", [("Limu", 11)]), answers=None), r"qas\[0\]: no list 'answers'; expected the layout of SQuAD"),
        ('{"data": [{"paragraphs": 3}]}', r"test\.json:data\[0\]: no list 'paragraphs'"),
        ('{"data": [', r"test\.json: .*expected JSON in SQuAD's layout"),
        ('{"data": []}', r"test\.json: no example in it"),
    ],
)
def test_question_answering_error_names_the_json_path(squad, text, error):
    (squad / "test.json").write_text(text)
    with pytest.raises(UserError, match=error) as refused:
        read(squad, ASKED)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "version"), [("squad", "1.1"), ("squad2", "2.0")])
def test_squad_is_read_by_its_names(tmp_path, name, version):
    for part, ids in (("train", "abcdefghijkl"), ("dev", "mno")):
        (tmp_path / f"{part}-v{version}.json").write_text(questions(*((i, [("Limu", 11)]) for i in ids)))
    source = read(tmp_path, {}, name)
    assert [e.id for e in source.splits["test"]] == ["m", "n", "o"]
    rows = {"squad": (87599, 10570), "squad2": (130319, 11873)}[name]
    assert (source.counts["train_rows_published"], source.counts["dev_rows_published"]) == rows
    assert len(source.warnings) == 2
    with pytest.raises(UserError, match=r"nowhere: not a folder; expected one with the files of SQuAD"):
        read("nowhere", {}, name)


def test_multiple_choice_columns_with_numeric_label(choice):
    source = read(choice, CHOICE)
    assert source.task.labels == ("0", "1", "2")
    assert source.splits["test"][4] == Example("test-5", "text 4", "Who?", 1, choices=("a4", "b4", "c4"))
    assert counts(source.task, "test", source.splits["test"])["test_label_1"] == 2
    assert shared_text_counts(source.task, source.splits)["test_also_in_train"] + shared_text_counts(
        source.task, source.splits
    )["test_also_in_valid"] == len(source.splits["test"])
    assert source.splits["test"][0].sha256 != Example("x", "text 0", "Who?", 0).sha256


def test_multiple_choice_list_with_letter_label(choice):
    for split in ("train", "test"):
        (choice / f"{split}.csv").unlink()
        rows = [{"context": f"t{i}", "ends": ["x", "y"], "gold": "AB"[i % 2]} for i in range(9)]
        (choice / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    described = {**CHOICE, "choices": ["ends"], "labels": ["A", "B"]}
    del described["b"]
    assert read(choice, described).splits["test"][1] == Example("test-2", "t1", None, 1, choices=("x", "y"))
    with pytest.raises(UserError, match=r"train\.jsonl:1: found 2 choices in the column 'ends'; expected a list of 3"):
        read(choice, described | {"labels": ["A", "B", "C"]})
    with pytest.raises(UserError, match=r"^examples\.mine\.labels: missing; expected how the label writes each place"):
        read(choice, described | {"labels": []})


@pytest.mark.parametrize(
    ("described", "error"),
    [
        (CHOICE | {"choices": ["one", "two", "tree"]}, r"train\.csv:2: no column 'tree'; .*did you mean 'three'"),
        (CHOICE | {"choices": ["one", "two"]}, r"train\.csv:4: the label '2' .*expected one of 0, 1"),
        (CHOICE | {"labels": ["A"]}, r"^examples\.mine\.labels: 1 for 3 choices"),
        (CHOICE | {"choices": []}, r"states kind, a, choices, label, score \(choices is missing\)"),
        (CHOICE | {"symmetric": True}, r"^examples\.mine\.symmetric: has no meaning for the kind multiple_choice"),
        (NER | {"labels": ["A B"]}, r"^examples\.mine\.labels: .*types without whitespace"),
        (ASKED | {"labels": ["x"]}, r"^examples\.mine\.labels: found x; expected none for a question_answering"),
        (NER, r"has no file train; expected one of train\.conll, train\.txt"),
        (ASKED, r"has no file train; expected train\.json"),
    ],
)
def test_invalid_description_of_other_kinds_is_refused(choice, described, error):
    with pytest.raises(UserError, match=error):
        read(choice, described)


def test_swag_is_a_table_of_four_endings(tmp_path):
    header = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", "ending0", "ending1"]
    for part in ("train", "val"):
        with (tmp_path / f"{part}.csv").open("w", newline="") as file:
            rows = [
                [i, "v", i, "s", f"A, {i}.", "He", "gold", "runs", "sits", "says", "eats", i % 4] for i in range(20)
            ]
            csv.writer(file).writerows([[*header, "ending2", "ending3", "label"], *rows])
    source = read(tmp_path, {}, "swag")
    assert source.splits["test"][5] == Example("val-6", "A, 5.", "He", 1, choices=("runs", "sits", "says", "eats"))
    assert source.counts["val_rows_published"] == 20006
    with pytest.raises(UserError, match="not a folder; expected one with the files of SWAG"):
        read(tmp_path / "train.csv", {}, "swag")


@pytest.mark.parametrize(("name", "described"), [("ner", NER), ("squad", ASKED), ("choice", CHOICE)])
def test_other_kinds_round_trip(request, tmp_path, name, described):
    source = read(request.getfixturevalue(name), described)
    write_examples(tmp_path / "file", source.splits["test"], source.task)
    assert read_examples(tmp_path / "file", source.task) == source.splits["test"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("conll2003", {"id": "x", "a": "b c", "tags": ["O"]}),
        ("conll2003", {"id": "x", "a": "b", "tags": ["B-X"]}),
        ("squad", {"id": "x", "a": "b", "b": "c"}),
        ("squad", {"id": "x", "a": "b", "b": "c", "answers": [["c"]]}),
        ("swag", {"id": "x", "a": "b", "choices": ["c"], "label": "4"}),
    ],
)
def test_a_damaged_line_is_named(tmp_path, name, line):
    (tmp_path / "test.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=rf"test\.jsonl:1: .*expected an example of {name}"):
        read_examples(tmp_path / "test.jsonl", TASKS[name].task)
