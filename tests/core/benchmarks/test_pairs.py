"""Minimal pairs: what the rules make of a text, and files that hold pairs or only seem to."""

import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.pair_sets import (
    OTHER,
    RULES,
    Pair,
    PairsConfig,
    load_pairs,
    pairs_from,
    read_pairs,
    write_pairs,
)
from plm_core.config import UserError, from_dict
from plm_core.corpus.document import Document, write_documents

TEXT = """The state of the union is strong and we have seen that these laws were good, for in 1856 Mexico was not the
place, said Spain. If it does this government has many treaties with Peru; to have 1789 or Mexico is fine"""
WORDS = st.sampled_from(TEXT.split())
TEXTS = st.lists(WORDS, min_size=1, max_size=120).map(" ".join)


def pairs_of(rule, text):
    return list(pairs_from(Document("d", text, "own", {}), RULES[rule]))


@given(TEXTS, st.sampled_from(list(RULES)))
def test_pairs_have_an_original_and_a_deterministic_bad_text(text, rule):
    pairs = pairs_of(rule, text)
    for good, bad in pairs:
        assert good in text
        assert bad != good
    assert pairs_of(rule, text) == pairs


@given(TEXTS)
def test_agreement_pair_changes_the_number_of_one_word(text):
    for rule, words in (
        ("verb_agreement", set(OTHER) - {"this", "these"}),
        ("determiner_agreement", {"this", "these"}),
    ):
        for good, bad in pairs_of(rule, text):
            ((word, other),) = [pair for pair in zip(good.split(), bad.split(), strict=True) if pair[0] != pair[1]]
            assert word in words
            assert OTHER[word] == other


@given(TEXTS)
def test_word_order_pair_reverses_four_neighbours(text):
    for good, bad in pairs_of("word_order", text):
        right, wrong = good.split(), bad.split()
        places = [i for i in range(len(right)) if right[i] != wrong[i]]
        first = next(i for i in range(len(right) - 3) if right[:i] + right[i : i + 4][::-1] + right[i + 4 :] == wrong)
        assert all(first <= place < first + 4 for place in places)
        assert all(word.isalpha() and word.islower() for word in right[first : first + 4])


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        ("verb_agreement", "The laws of this state were good.", "The laws of this state was good."),
        ("verb_agreement", "If it were so, we would all be glad.", None),  # a subjunctive
        ("verb_agreement", "We would like to have such laws here.", None),  # an infinitive
        ("verb_agreement", "It is so.", None),  # too short
        ("determiner_agreement", "We know that these measures have failed.", "We know that this measures have failed."),
        ("determiner_agreement", "We know that these are the measures.", None),  # `this are`, but perhaps `of this are`
        ("determiner_agreement", "Let us look at this great nation.", "Let us look at these great nation."),
        ("word_order", "Now The Laws Were Made Here Today.", None),
        ("word_order", "Then, they went far away, Sir.", None),  # no four in a row without a mark
        ("word_order", "Then they went far away, Sir.", None),
        ("word_order", "He then went far from here, Sir.", "He from far went then here, Sir."),
        ("word_order", "明日は、が降るだ。", "明日は、だる降が。"),
        ("mentions", "From Mexico he went to Spain, as Mexico is far.", None),  # nothing else stands behind `as`
        (
            "mentions",
            "We met in Mexico and in Spain. I like to be in Mexico.",
            "We met in Mexico and in Spain. I like to be in Peru.",
        ),
        ("mentions", "He began in 1845 and in Spain, but ended in 1845.", None),  # a name is no number
    ],
)
def test_pair_rules_by_hand(rule, text, expected):
    text = f"{text}\n\nOf old, he was in Peru." if rule == "mentions" else text
    assert pairs_of(rule, text) == ([] if expected is None else [(text.partition("\n\n")[0], expected)])


def test_mentions_pair_begins_at_the_sentence_of_the_first_mention():
    text = "Nobody had yet spoken. We met in Mexico. I like to be in Mexico.\n\nOf old, he was in Peru."
    expected = ("We met in Mexico. I like to be in Mexico.", "We met in Mexico. I like to be in Peru.")
    assert pairs_of("mentions", text) == [expected]
    assert pairs_of("word_order", "雪。明日は、が降るだ。雨。") == [("明日は、が降るだ。", "明日は、だる降が。")]


def test_pairs_exclude_long_sentences_and_passages():
    for words, count in ((40, 1), (41, 0)):
        assert len(pairs_of("verb_agreement", f"It is {' '.join(['so'] * (words - 2))}.")) == count
    for words, count in ((60, 1), (61, 0)):
        text = f"We were in Mexico. {' '.join(['So'] * (words - 8))}. We were in Mexico.\n\nWe were in Peru."
        assert len(pairs_of("mentions", text)) == count


@pytest.fixture
def splits(tmp_path, documents):
    write_documents(tmp_path / "test.parquet", documents)
    return tmp_path / "test.parquet"


def test_pairs_of_documents_know_their_document_and_their_rule(splits, documents):
    pairs, left_out = read_pairs("own", PairsConfig(str(splits), ["word_order", "mentions", "word_order"]))
    assert left_out == []
    assert {pair.paradigm for pair in pairs} == {"word_order"}  # made-up prose has no names
    assert {pair.group for pair in pairs} == {document.id for document in documents}
    assert len({pair.id for pair in pairs}) == len(pairs)


def test_per_paradigm_sample_is_stable_under_new_documents(splits, documents):
    config = PairsConfig(str(splits), ["word_order"], per_paradigm=31)
    before, _ = read_pairs("own", config)
    assert len(before) == 31
    every, _ = read_pairs("own", PairsConfig(str(splits), ["word_order"]))
    assert [pair for pair in every if pair in before] == before
    write_documents(splits, documents[1:])
    after, _ = read_pairs("own", config)
    assert len({pair.id for pair in before} & {pair.id for pair in after}) >= 28


def rows(*some):
    return "".join(json.dumps(row) + "\n" for row in some)


def test_custom_and_blimp_pairs_are_read(tmp_path):
    own = [{"good": " A b. ", "bad": "B a.", "paradigm": "order", "group": "g"}, {"good": "A.", "bad": "B."}]
    own += [{"good": "C.", "bad": "D.", "paradigm": "pair"}]
    blimp = {"sentence_good": "It is.", "sentence_bad": "It are.", "UID": "agreement", "field": "syntax"}
    (tmp_path / "a.jsonl").write_text(rows(*own))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows(blimp, blimp).encode()))
    (tmp_path / "README.txt").write_text("no pairs")
    pairs, _ = read_pairs("mine", PairsConfig(str(tmp_path)))
    assert pairs == [
        Pair("order-1", "A b.", "B a.", "order", "g"),
        Pair("pair-1", "A.", "B."),
        Pair("pair-2", "C.", "D.", "pair"),
        Pair("agreement-1", "It is.", "It are.", "agreement"),
        Pair("agreement-2", "It is.", "It are.", "agreement"),
    ]
    write_pairs(tmp_path / "made.jsonl", pairs)
    assert load_pairs(tmp_path / "made.jsonl") == pairs
    assert len({pair.sha256 for pair in pairs}) == 4


def test_pairs_prefix_stands_before_both_texts(splits):
    config = PairsConfig(str(splits), ["word_order"], per_paradigm=31)
    plain, _ = read_pairs("own", config)
    behind, _ = read_pairs("own", replace(config, prefix="It was so.\n"))
    assert behind == [replace(p, good=f"It was so.\n{p.good}", bad=f"It was so.\n{p.bad}") for p in plain]


def test_pairs_folder_skips_and_reports_hidden_files(tmp_path):
    for name in ("a.jsonl", "._a.jsonl"):
        (tmp_path / name).write_text('{"good": "A.", "bad": "B."}\n')
    pairs, left_out = read_pairs("own", PairsConfig(str(tmp_path)))
    assert (len(pairs), left_out) == (1, [f"{tmp_path}/._a.jsonl: hidden, and not read"])


def test_blimp_pairs_of_equal_texts_are_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        rows(*({"sentence_good": text, "sentence_bad": "Same.", "UID": "x"} for text in ("Same. ", "Other.")))
    )
    pairs, left_out = read_pairs("blimp", PairsConfig(str(tmp_path / "a.jsonl")))
    assert [pair.id for pair in pairs] == ["x-2"]
    assert left_out == [f"{tmp_path}/a.jsonl:1: both sentences of the pair are the same"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rows({"good": "A.", "bad": "B."}, {"good": "A.", "bad": " A."}), "jsonl:2: good and bad are the same"),
        (rows({"good": "A."}), "jsonl:1: no field 'bad'; expected 'good' and 'bad'"),
        (rows({"sentence_bad": "A."}), "jsonl:1: no field 'sentence_good'; expected 'sentence_good' and"),
        (rows({"a": "A."}), "jsonl:1: no field 'good'"),
        (rows({"good": "A.", "bad": ""}), "jsonl:1: nothing in the column 'bad'"),
        (rows({"good": "A.", "bad": 3}), "jsonl:1: found int in the column 'bad'"),
        (rows({"good": "A.", "bad": "B.", "group": 7}), "jsonl:1: found int in the column 'group'; expected text"),
        ("{\n", "jsonl:1: "),
        ("", r"gives no pair; expected at least one line, or another input \(pairs\.mine\)"),
    ],
)
def test_file_without_pairs_is_one_line(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UserError, match=message) as refused:
        read_pairs("mine", PairsConfig(str(tmp_path / "a.jsonl")))
    assert "\n" not in str(refused.value)


def test_invalid_pairs_input_is_one_line(tmp_path, splits):
    for path in (splits, tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=r"is not a file of pairs; expected \.jsonl or"):
            read_pairs("mine", PairsConfig(str(path)))
    with pytest.raises(UserError, match="gives no pair; expected sentences to which its rules apply"):
        read_pairs("mine", PairsConfig(str(splits), ["mentions"]))


def test_damaged_pairs_file_names_its_line(tmp_path):
    path = tmp_path / "own.jsonl"
    with pytest.raises(UserError, match="missing; run the stage"):
        load_pairs(path)
    write_pairs(path, [Pair("1", "A.", "B.")])
    path.write_text(path.read_text() + '{"id": 1\n')
    with pytest.raises(UserError, match=r"own\.jsonl:2: .*expected a pair; restore it"):
        load_pairs(path)


def test_a_parameter_with_its_old_name_is_refused_with_the_new_one():
    old = {"input": "splits", "rules": ["word_order"], "each": 3}
    with pytest.raises(UserError, match=r"^pairs\.own\.each: unknown parameter; its name is now 'per_paradigm'$"):
        from_dict(PairsConfig, old, "pairs.own")
