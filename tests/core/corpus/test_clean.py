"""Cleaning loses nothing: every paragraph is kept once or is a removal with its reason."""

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.clean import CleanConfig, clean
from plm_core.corpus.document import Document
from plm_core.corpus.normalize import duplicate_key, normalize, paragraphs

CONFIG = CleanConfig(min_words=2, max_words=5)

WORDS = st.sampled_from(["a", "A", "Bé", "be\u0301", "ß", "SS", "\u2581", "\0", "\ufeff", "\u00a0", "\x1c", "x" * 13])
SPACES = st.sampled_from([" ", "\n", "\n\n", "\r\n", "\r", "\t", " \n \n", "\u2028"])
TEXTS = st.lists(st.tuples(WORDS, SPACES), max_size=25).map(lambda parts: "".join(w + s for w, s in parts))
CORPORA = st.lists(TEXTS, max_size=7).map(
    lambda texts: [Document(f"d{i}", t, "s", {"n": i}) for i, t in enumerate(texts)]
)


@given(st.text() | TEXTS)
def test_the_normal_form_is_a_fixed_point_without_nul_carriage_return_or_space_mark(text):
    once = normalize(text)
    assert normalize(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not set("\0\r\u2581") & set(once)


@pytest.mark.parametrize(
    ("text", "normal"),
    [("e\u0301", "é"), ("a\r\nb\rc\n", "a\nb\nc\n"), ("a\0b", "ab"), ("\u2581", "_"), ("ﬁ \u00a0 ½", "ﬁ \u00a0 ½")],
)
def test_the_normal_form_changes_what_it_says_and_no_more(text, normal):
    assert normalize(text) == normal


def test_paragraphs_are_separated_by_lines_of_white_space():
    assert paragraphs("\n one \n two\n \t\n\n\nthree\n") == ["one\ntwo", "three"]
    assert paragraphs(" \n\n") == []


@given(CORPORA)
def test_every_paragraph_is_kept_or_removed_with_its_reason_and_keeps_its_place(documents):
    cleaned = list(clean(documents, CONFIG))
    assert [d.id for d, _ in cleaned] == [d.id for d in documents]
    kept_so_far = {}
    for before, (after, removals) in zip(documents, cleaned, strict=True):
        assert (after.source, after.metadata) == (before.source, before.metadata)
        given_paragraphs = paragraphs(normalize(before.text))
        removed = {r.paragraph: r for r in removals}
        kept = [(i, p) for i, p in enumerate(given_paragraphs) if i not in removed]
        assert after.text == "\n\n".join(p for _, p in kept)
        for i, text in kept:
            assert 2 <= len(text.split()) <= 5
            assert kept_so_far.setdefault(duplicate_key(text), f"{before.id}#{i}") == f"{before.id}#{i}"
        for removal in removals:
            text = given_paragraphs[removal.paragraph]
            assert (removal.document, removal.text) == (before.id, text)
            words = len(text.split())
            expected = "too_short" if words < 2 else "too_long" if words > 5 else "duplicate"
            assert removal.rule == expected
            assert removal.value == (kept_so_far[duplicate_key(text)] if expected == "duplicate" else str(words))


@given(CORPORA)
def test_cleaning_a_clean_corpus_changes_nothing(documents):
    once = [document for document, _ in clean(documents, CONFIG)]
    twice = list(clean(once, CONFIG))
    assert [document for document, _ in twice] == once
    assert not any(removals for _, removals in twice)


@given(CORPORA, st.integers(0, 99))
def test_sorted_by_id_the_result_does_not_depend_on_the_order_of_delivery(documents, seed):
    delivered = random.Random(seed).sample(documents, len(documents))
    assert list(clean(sorted(delivered, key=lambda d: d.id), CONFIG)) == list(clean(documents, CONFIG))


def test_the_first_copy_stays_and_the_later_says_where_it_is():
    documents = [Document("a", "One two.\n\nThree four.", "s"), Document("b", "Five six.\n\nONE  two.", "s")]
    (first, none), (second, removals) = clean(documents, CONFIG)
    assert (first.text, none, second.text) == ("One two.\n\nThree four.", [], "Five six.")
    assert [(r.rule, r.value, r.paragraph, r.text) for r in removals] == [("duplicate", "a#0", 1, "ONE  two.")]


@pytest.mark.parametrize(("few", "many"), [(-1, 5), (7, 5)])
def test_a_length_rule_that_no_paragraph_can_meet_is_refused(few, many):
    with pytest.raises(ValueError, match=r"^min_words"):
        CleanConfig(few, many)
