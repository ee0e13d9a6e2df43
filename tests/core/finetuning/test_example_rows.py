"""Examples as rows: every word is asked about once, every token of a text is read, an answer is found by characters."""

import itertools
import math
import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.task import GlueTask, iob2
from plm_core.corpus.normalize import normalize
from plm_core.finetuning.featurize import characters, encoded, equal_parts, windows
from plm_core.finetuning.input_formats import input_format_of
from plm_core.objectives import OBJECTIVES
from plm_core.text.tokenizers import BOS, CLS, EOS, SEP, UNK

NER = GlueTask(
    "ner", "token_classification", "Which?", iob2(["PER", "LOC"]), ("entity_f1",), "entity_f1"
)  # fmt: skip
ASKED = GlueTask("asked", "question_answering", "Where?", (), ("exact_match",), "exact_match", unanswerable=True)
ERA = GlueTask("era", "classification", "When?", ("old", "new"), ("accuracy",), "accuracy")
ALIKE = GlueTask("alike", "regression", "How?", (), ("pearson",), "pearson", symmetric=True)
CHOICE = GlueTask("choice", "multiple_choice", "Which?", ("0", "1", "2"), ("accuracy",), "accuracy")
EACH = pytest.mark.parametrize("objective", OBJECTIVES)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=9)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@given(length=st.integers(0, 99), most=st.integers(1, 37))
def test_windows_cover_a_text_and_overlap_by_half(length, most):
    parts = windows(length, most)
    assert all(len(part) <= most for part in parts)
    assert sorted({i for part in parts for i in part}) == list(range(length))
    assert len(parts) == 1 or all(len(part) == most for part in parts[:-1])
    for before, after in itertools.pairwise(parts):
        assert after.start - before.start == max(1, round(most / 2))
        assert after.stop > before.stop


@given(length=st.integers(0, 99), most=st.integers(1, 37))
def test_parts_are_few_and_alike_and_hold_each_token_once(length, most):
    parts = equal_parts(length, most)
    assert [i for part in parts for i in part] == list(range(length))
    assert len(parts) == max(1, math.ceil(length / most))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("objective", "before", "after", "segment"),
    [
        ("causal", [BOS], [CLS], 0),
        ("hybrid", [BOS], [CLS], 0),
        ("masked", [CLS], [SEP], 0),
        ("permutation", [], [SEP, CLS], 2),
    ],
)
@given(text=TEXTS, context=st.integers(3, 37))
def test_a_long_text_is_read_in_parts_framed_as_each_paper_does(
    tokenizer, objective, before, after, segment, text, context
):
    rows = encoded([Example("x", text, None, 1)], ERA, input_format_of(objective), tokenizer, context)
    read = []
    for row in rows.encoded:
        ((ids, segments),) = row.sequences
        assert len(ids) <= context
        assert ids[: len(before)] == before
        assert ids[len(ids) - len(after) :] == after
        assert segments == [0] * (len(ids) - 1) + [segment]
        assert row.label == 1
        read += ids[len(before) : len(ids) - len(after)]
    assert read == tokenizer.encode(text)
    assert (set(rows.owners), rows.cut) == ({0}, 0)


@EACH
def test_examples_of_which_something_is_left_out_are_counted(tokenizer, objective):
    input_format = input_format_of(objective)
    long = "Bafo limu. " * 99
    fits, cut = (Example("x", text, "Ba", 0.5) for text in ("Ba", long))
    assert encoded([fits, cut, fits], ALIKE, input_format, tokenizer, 37).cut == 1
    fits, cut = (Example("x", "Ba", None, 0, choices=("Ba", text)) for text in ("Bafo", long))
    assert encoded([cut, cut, fits], CHOICE, input_format, tokenizer, 37).cut == 2
    fits, cut = (Example("x", text, long, 0) for text in ("Ba?", long))
    rows = encoded([fits, cut], ASKED, input_format, tokenizer, 37)
    assert len(rows.encoded) > 20
    assert rows.cut == 1


@EACH
@pytest.mark.parametrize("follows", [False, True])
def test_truncation_keeps_the_end_of_a_text_that_another_follows(tokenizer, objective, follows):
    input_format = input_format_of(objective)
    task = GlueTask("next", "classification", "?", ("other", "next"), ("accuracy",), "accuracy", follows=follows)
    a, b = ("".join(f"{letter}{i} " for i in range(29)) for letter in "ab")
    for context in (37, 999):
        (row,) = encoded([Example("x", a, b, 0)], task, input_format, tokenizer, context).encoded
        read_a, read_b = (tokenizer.encode(text) for text in (a, b))
        if context == 37:
            assert row.cut
            half = (37 - sum(isinstance(part, int) for part, _ in input_format.pair)) / 2
            of_a, of_b = math.ceil(half), math.floor(half)
            read_a, read_b = read_a[-of_a:] if follows else read_a[:of_a], read_b[:of_b]
        text = [i for i in row.sequences[0].ids if i not in (BOS, CLS, EOS, SEP)]
        assert text == [*read_a, *read_b]


@EACH
@given(words=st.lists(WORDS, min_size=1, max_size=19), context=st.integers(8, 31))
def test_tagging_asks_each_word_once_at_its_first_piece(tokenizer, objective, words, context):
    tags = tuple(i % 5 for i in range(len(words)))
    example = Example("x", " ".join(words), None, 0, tags=tags)
    rows = encoded([example], NER, input_format_of(objective), tokenizer, context).encoded
    assert [tag for row in rows for tag in row.label] == list(tags)
    assert [row.first + i for row in rows for i in range(len(row.places))] == list(range(len(words)))
    assert all(row.longest <= context for row in rows)
    for row in rows:
        for i, place in enumerate(row.places):
            word = example.words[row.first + i]
            first, *_ = tokenizer.encode(f" {word}" if row.first + i else word)
            assert row.sequences[0].ids[place] == first


def test_tagging_takes_a_word_from_its_best_window(tokenizer):
    words = ["ba"] * 40
    example = Example("x", " ".join(words), None, 0, tags=(0,) * 40)
    size = len(tokenizer.encode(" ba"))
    rows = encoded([example], NER, input_format_of("masked"), tokenizer, 2 + 10 * size).encoded
    assert len(rows) == 7
    for before, row in enumerate(rows[1:-1]):
        about = [place - 1 for place in row.places]
        assert len(about) == 5, before
        assert min(about) >= 2 * size
        assert max(about) <= 8 * size


def test_tagging_word_without_tokens_is_unknown(tokenizers):
    example = Example("x", "\u200b ba \u200b", None, 0, tags=(0, 1, 0))
    (row,) = encoded([example], NER, input_format_of("masked"), tokenizers["wordpiece"], 37).encoded
    assert [row.sequences[0].ids[place] == UNK for place in row.places] == [True, False, True]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "bytelevel"])
@given(text=TEXTS)
def test_token_character_spans_are_ordered(tokenizers, kind, text):
    tokenizer = tokenizers[kind]
    spelling = tokenizer.spell(text)
    spans = characters(text, spelling)
    assert len(spans) == len(spelling.ids)
    assert all(0 <= start <= stop <= len(text) for start, stop in spans)
    assert all(before[0] <= after[0] and before[1] <= after[1] for before, after in itertools.pairwise(spans))
    if tokenizer.lossless and spans:
        assert normalize(text[spans[0][0] :]) == normalize(text)
        for start, stop in spans:
            piece = normalize(text[start:stop])
            assert unicodedata.is_normalized("NFC", piece)
        assert {i for start, stop in spans for i in range(start, stop)} == set(range(len(text)))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "bytelevel"])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Bafo limu pesa.", "limu"),
        ("Cafe\u0301 limu", "limu"),
        ("a\r\nb limu\r\npesa", "limu"),
        ("\u2581\u2581 limu", "limu"),
        ("e\u0301e\u0301e\u0301 Ba", "Ba"),
        ("日本語 limu 日本", "limu"),
    ],
)
def test_answer_span_is_cut_out_of_the_original_text(tokenizers, kind, text, answer):
    example = Example("x", "Ba?", text, 0, answers=(Answer(answer, text.index(answer)),))
    (row,) = encoded([example], ASKED, input_format_of("masked"), tokenizers[kind], 99).encoded
    spans = characters(text, tokenizers[kind].spell(text))
    first, last = (place - 1 for place in row.label)
    assert text[spans[first][0] : spans[last][1]].strip() == answer


@EACH
@given(seed=st.integers(0, 99), context=st.integers(8, 61))
def test_question_windows_locate_the_answer(tokenizer, objective, seed, context):
    draw = random.Random(seed)
    words = [draw.choice(["bafo", "limu", "pesa", "toku"]) for _ in range(draw.randint(1, 40))]
    chosen = draw.randrange(len(words))
    text, start = " ".join(words), len(" ".join([*words[:chosen], ""]))
    example = Example("x", "Ba " * draw.randint(1, 40), text, 0, answers=(Answer(words[chosen], start),))
    rows = encoded([example], ASKED, input_format_of(objective), tokenizer, context).encoded
    ids, question = tokenizer.encode(text), tokenizer.encode(example.a)
    spans = characters(text, tokenizer.spell(text))
    read = set()
    for row in rows:
        (written,) = row.sequences
        null, *places = row.places
        assert written.ids[null] == CLS
        assert [written.ids[place] for place in places] == ids[row.first : row.first + len(places)]
        assert row.longest <= context
        read |= set(range(row.first, row.first + len(places)))
        indices = [i for i in range(row.longest) if i not in row.places and written.ids[i] not in (BOS, EOS, SEP)]
        assert [written.ids[i] for i in indices] == question[: len(indices)]
        assert indices
        if objective == "permutation":
            assert {written.segments[i] for i in places} == {0}
            assert {written.segments[i] for i in indices} == {1}
        if row.label != [0, 0]:
            first, last = (row.first + place - 1 for place in row.label)
            assert text[spans[first][0] : spans[last][1]].strip() == words[chosen]
    assert read == set(range(len(ids)))
    assert context < 37 or any(row.label != [0, 0] for row in rows)


def test_unanswerable_question_points_at_cls(tokenizer):
    example = Example("x", "Ba?", "Bafo limu.", 0)
    (row,) = encoded([example], ASKED, input_format_of("causal"), tokenizer, 99).encoded
    assert row.label == [0, 0]
    assert row.sequences[0].ids[row.places[0]] == CLS


@EACH
def test_multiple_choice_has_a_sequence_per_option(tokenizer, objective):
    input_format = input_format_of(objective)
    plain = Example("x", "Bafo.", None, 1, choices=("limu", "pesa", "toku"))
    begun = Example("y", "Bafo.", "Ba", 2, choices=("limu", "pesa", "toku"))
    rows = encoded([plain, begun], CHOICE, input_format, tokenizer, 37)
    assert rows.owners == [0, 1]
    for row, before in zip(rows.encoded, ("", "Ba "), strict=True):
        texts = [(tokenizer.encode("Bafo."), tokenizer.encode(f"{before}{choice}")) for choice in plain.choices]
        assert row.sequences == [input_format.write(a, b, 37) for a, b in texts]
    assert [row.label for row in rows.encoded] == [1, 2]


def test_published_encoder_frames_pairs_as_trained():
    """RoBERTa: ``<s> A </s></s> B </s>`` in one segment; DistilBERT: BERT's pieces without segments."""
    roberta = input_format_of("masked", {"separators": 2, "segments": 1})
    assert roberta.write([11, 12], [13], 64) == ([CLS, 11, 12, SEP, SEP, 13, SEP], [0] * 7)
    assert [part for part, _ in roberta.question] == [CLS, "a", SEP, SEP, "b", SEP]
    assert roberta.single == ((CLS, 0), ("a", 0), (SEP, 0))
    distilled = input_format_of("masked", {"separators": 1, "segments": 0})
    assert distilled.write([11], [13], 64) == ([CLS, 11, SEP, 13, SEP], [0] * 5)
    bert = input_format_of("masked", {"separators": 1, "segments": 2})
    assert bert is input_format_of("masked")
