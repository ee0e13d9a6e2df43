"""Examples are functions of the documents: right labels, real neighbours."""

import pytest

from plm_core.benchmarks import task_sources
from plm_core.benchmarks.example_readers import SPLITS, Example
from plm_core.benchmarks.task_sources import (
    MADE,
    MAX_WORDS,
    MIN_WORDS,
    PART,
    SEAM,
    beginning_queries,
    eras,
    next_passages,
)
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError
from plm_core.corpus import document as module
from plm_core.corpus.document import Document, write_documents
from plm_core.corpus.normalize import paragraphs


def words(count, tag):
    return " ".join(f"{tag}{i}" for i in range(count))


@pytest.mark.parametrize("name", MADE)
def test_a_task_gives_the_same_unique_examples_each_time(documents, name):
    examples = list(MADE[name](documents))
    assert examples == list(MADE[name](documents))
    assert len({e.id for e in examples}) == len(examples) > 99
    assert {e.label for e in examples} == set(range(max(1, len(TASKS[name].task.labels))))


def test_large_split_is_sampled_with_a_note(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    for split in SPLITS:
        write_documents(tmp_path / f"{split}.parquet", documents if split == "train" else documents[:4])
    whole, warnings = task_sources.read_corpus_task("next", tmp_path)
    assert warnings == []
    assert whole["train"] == list(next_passages(documents))
    monkeypatch.setattr(task_sources, "READ_BYTES", 30_000)
    some, warnings = task_sources.read_corpus_task("next", tmp_path)
    read = {example.group for example in some["train"]}
    groups = -(-len(documents) // 2)
    count = -(-len(read) // 2)  # the last may have one document
    assert 0.1 < count / groups < 0.7
    assert warnings == [f"{tmp_path}/train.parquet: examples are made from {count / groups:.2%} of it, evenly spread"]
    assert (some["valid"], some["test"]) == (whole["valid"], whole["test"])


def test_the_tasks_without_published_files_are_those_of_the_corpus():
    assert MADE.keys() == {name for name, row in TASKS.items() if row.published is None}


@pytest.mark.parametrize(("year", "label"), [(1790, 0), (1864, 0), (1865, 1), (1944, 1), (1945, 2), (2026, 2)])
def test_era_follows_from_the_year(year, label):
    (example,) = eras([Document("d", words(20, "a"), "s", {"year": year})])
    assert example == Example("d#0", words(20, "a"), None, label, group="d")


@pytest.mark.parametrize("metadata", [{}, {"year": "1865"}])
def test_a_document_without_a_year_is_refused_by_name(metadata):
    with pytest.raises(UserError, match=r"^examples\.sotu-era: .*'year'.*'d'"):
        list(eras([Document("d", words(20, "a"), "s", metadata)]))


def test_paragraphs_that_are_too_short_or_too_long_are_no_examples():
    sizes = [MIN_WORDS - 1, MIN_WORDS, MAX_WORDS, MAX_WORDS + 1]
    text = "\n\n".join(words(size, f"p{size}x") for size in sizes)
    assert [e.id for e in eras([Document("d", text, "s", {"year": 1900})])] == ["d#1", "d#2"]


def test_a_pair_is_adjacent_or_of_two_documents(documents):
    all_of = [(d.id, i, text.split()) for d in documents for i, text in enumerate(paragraphs(d.text))]
    ends = {" ".join(words[-SEAM:]): (document, i) for document, i, words in all_of}
    begins = {" ".join(words[:SEAM]): (document, i) for document, i, words in all_of}
    counts = [0, 0]
    for example in next_passages(documents):
        (document, position), (other, following) = ends[example.a], begins[example.b]
        assert (example.id, example.group) == (f"{document}#{position}", document)
        if example.label == 1:
            assert (other, following) == (document, position + 1)
        else:
            assert other != document
        counts[example.label] += 1
    total = sum(counts)
    assert total == 37 * 6
    assert abs(counts[0] - total / 2) < 4 * (total / 4) ** 0.5  # a fair coin


def test_paragraphs_around_an_unfit_one_are_not_adjacent():
    text = "\n\n".join([words(20, "a"), "short", words(20, "b"), words(20, "c")])
    assert [e.id for e in next_passages([Document("d", text, "s")])] == ["d#2"]


def test_a_single_document_has_only_real_neighbours_and_none_gives_no_example():
    document = Document("d", "\n\n".join(words(20, t) for t in "abcdefghij"), "s")
    assert {e.label for e in next_passages([document])} == {1}
    assert list(next_passages([])) == []
    empty = Document("e", "", "s")
    assert {e.label for e in next_passages([document, empty])} == {1}


def test_pair_has_the_words_at_the_seam():
    first, second = (words(SEAM + 2, name) for name in "ab")
    for a, b in ((first, second), (words(SEAM, "a"), words(SEAM, "b")), (words(MIN_WORDS, "a"), words(MIN_WORDS, "b"))):
        (example,) = next_passages([Document("d", f"{a}\n\n{b}", "s")])
        assert example.a.split() == a.split()[-SEAM:]
        assert example.b.split() == b.split()[:SEAM]


def test_pair_without_spaces_has_the_characters_at_the_seam():
    first, second = ("".join(map(chr, range(begin, begin + SEAM + 9))) for begin in (0x4E00, 0x5E00))
    (example,) = next_passages([Document("d", f"{first}\n\n{second}", "s")])
    assert (example.a, example.b) == (first[-SEAM:], second[:SEAM])


@pytest.mark.parametrize(
    "text",
    [
        "The bill is wrong. " * 3 + "Please send another one. " * 3,
        "no end of a sentence " * 99,
        "我们的账单有误，请再寄一份。" * 9,
    ],
    ids=["one paragraph", "without sentences", "without spaces"],
)
def test_single_paragraph_document_is_divided_without_loss(text, monkeypatch):
    monkeypatch.setattr(task_sources, "SEAM", 10**6)
    documents = [Document(str(i), f"{text}{i}" * 3, "s") for i in range(40)]
    examples = list(next_passages(documents))
    assert {e.label for e in examples} == {0, 1}
    for document in documents:
        own = [e for e in examples if e.id.rpartition("#")[0] == document.id]
        assert [e.id for e in own] == [f"{document.id}#{i}" for i in range(len(own))]
        passages = [e.a for e in own] + [e.b for e in own[-1:] if e.label == 1]
        assert "".join(document.text.split()).startswith("".join("".join(passages).split()))
        assert max(map(len, passages)) <= 2 * PART


def test_parts_end_behind_sentences_where_there_are_some():
    text = "This is the first sentence of it. This is the second sentence of it, and a longer one."
    (example,) = next_passages([Document("d", text, "s")])
    assert (example.a, example.b) == tuple(text.replace("it. ", "it.|").split("|"))


def test_a_text_too_short_for_two_parts_is_no_example():
    assert list(next_passages([Document("d", "Too short to part.", "s")])) == []


def test_second_passage_is_never_the_start_of_a_document(documents):
    begins = {" ".join(paragraphs(document.text)[0].split()[:SEAM]) for document in documents}
    assert not begins & {example.b for example in next_passages(documents)}


def test_search_query_is_the_first_sentence_removed_from_passage():
    first, rest, long = words(5, "q") + ".", words(MIN_WORDS, "r"), words(SEAM + 3, "l")
    text = "\n\n".join(
        [
            f"{first}\n{rest}",
            f"Mr. {first} {rest}",  # so few words are no query
            f"{first} {rest} {first}",  # would be found by itself
            f"{long}. {rest}",
            f"{first} {words(MIN_WORDS - 1, 'r')}",
            words(20, "n"),
        ]
    )
    examples = list(beginning_queries([Document("d", text, "s")]))
    assert [(e.id, e.a, e.b, e.group) for e in examples] == [
        ("d#0", first, rest, "d"),
        ("d#1", f"Mr. {first}", rest, "d"),
        ("d#3", words(SEAM, "l"), rest, "d"),
    ]
    (whole,) = beginning_queries([Document("d", words(20, "n"), "s")])  # no passage has a second sentence
    assert (whole.a, whole.b) == (words(5, "n"), " ".join(f"n{i}" for i in range(5, 20)))
