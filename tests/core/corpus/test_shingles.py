"""Words, also where a script puts no space between them; hashed ones and shingles are equal where the words are."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.normalize import UNSPACED, shortened, words_of
from plm_core.corpus.shingles import CHARACTERS_AT_ONCE, batches, words

MIXED = st.lists(st.text(alphabet="aBc1, .\n中文éπ\u0301", max_size=40), max_size=6)


def separate(values, ends):
    return [part.tolist() for part in np.split(values, ends[:-1])] if len(ends) else []


def hashes_of(text):
    tokens = words([text])
    return tokens.hashes.tolist()


def test_a_word_is_letters_and_digits_in_one_case():
    assert hashes_of("The cat, the CAT; (the cat)") == hashes_of("the cat") * 3
    assert len(set(hashes_of("the cat sat on a mat 12 1 2 21"))) == 10
    assert hashes_of("Straße") == hashes_of("STRASSE")
    assert hashes_of(" -- ... \n\t—“”") == [] == hashes_of("")


def test_a_character_of_a_script_without_spaces_is_a_word():
    assert len(hashes_of("他们是谁")) == 4
    assert hashes_of("是谁") == hashes_of("他们是谁")[2:]
    assert len(hashes_of("これはcat です")) == 6
    assert len(hashes_of("Это предложение")) == 2


def test_shingle_hashes_are_pinned_across_versions():
    expected = [3869343042603132125, 7719988617686786939, 12941988724307623726]
    assert words(["The cat 他 sat"]).shingles(2).hashes.tolist() == expected


@given(MIXED)
def test_batched_texts_have_the_shingles_of_each_alone(texts):
    tokens = words(texts)
    assert separate(tokens.hashes, tokens.ends) == [hashes_of(text) for text in texts]
    for n in (1, 3, 5):
        shingles = tokens.shingles(n)
        alone = [words([text]).shingles(n).hashes.tolist() for text in texts]
        assert separate(shingles.hashes, shingles.ends) == alone
        starts = [0, *tokens.ends.tolist()]
        for text, (places, own) in enumerate(zip(separate(shingles.places, shingles.ends), alone, strict=True)):
            assert places == list(range(starts[text], starts[text] + len(own)))


@given(st.lists(st.sampled_from(["a", "b", "c", "dd"]), max_size=12), st.integers(1, 6))
def test_shingles_are_equal_exactly_where_their_words_are(tokens, n):
    shingles = words([" ".join(tokens)]).shingles(n).hashes.tolist()
    expected = [tuple(tokens[i : i + n]) for i in range(max(1, len(tokens) - n + 1))] if tokens else []
    assert len(shingles) == len(expected)
    for i, left in enumerate(shingles):
        for j, right in enumerate(shingles):
            assert (left == right) == (expected[i] == expected[j])


def test_text_longer_than_a_hash_chunk():
    text = "word and word, " * CHARACTERS_AT_ONCE
    assert set(hashes_of(text)) == set(hashes_of("word and"))
    assert len(hashes_of(text)) == 3 * CHARACTERS_AT_ONCE


@given(st.lists(st.integers(0, CHARACTERS_AT_ONCE + 5), max_size=20))
def test_batches_keep_order_and_bound_characters(lengths):
    texts = [str(i) + "x" * length for i, length in enumerate(lengths)]
    groups = list(batches(texts, str))
    assert [text for group in groups for text in group] == texts
    assert all(len(group) == 1 or sum(map(len, group)) <= CHARACTERS_AT_ONCE for group in groups)


SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "YI SYLLABLE")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n a.我。かทà"), max_size=30)


def test_single_letter_words_are_of_scripts_without_spaces():
    unspaced = re.compile(f"[{UNSPACED}]")
    for character in map(chr, range(0x110000)):
        if unicodedata.category(character)[0] in "LNM":
            named = unicodedata.name(character, "").startswith((*SCRIPTS, "HENTAIGANA"))
            assert bool(unspaced.match(character)) == named, hex(ord(character))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's so, isn't it?\n", ["It's", "so,", "isn't", "it?"]),
        ("我们用GPT模型。 好", ["我", "们", "用", "GPT", "模", "型", "。", "好"]),
        ("コーヒー", ["コ", "ー", "ヒ", "ー"]),
        ("한국어 문장", ["한국어", "문장"]),
    ],
)
def test_words_by_hand(text, words):
    assert words_of(text) == words


@given(TEXTS)
def test_words_are_split_at_white_space_in_other_scripts(text):
    assert "".join(words_of(text)) == "".join(text.split())
    spaced = re.sub(f"[{UNSPACED}]", "", text)
    assert words_of(spaced) == spaced.split()


@given(text=TEXTS, words=st.integers(1, 9))
def test_shortened_text_is_a_prefix_or_suffix_of_n_words(text, words):
    first, last = shortened(text, words), shortened(text, words, last=True)
    assert text.startswith(first)
    assert text.endswith(last)
    every = words_of(text)
    for short, kept in ((first, every[:words]), (last, every[-words:])):
        assert words_of(short) == kept
        assert (short == text) == (len(every) <= words)
    assert shortened(text, None) == shortened(text, None, last=True) == text
