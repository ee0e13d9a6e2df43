"""Hashed words and shingles are those of each text alone, and equal where the words are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.shingles import CHARACTERS_AT_ONCE, batches, words

TEXTS = st.lists(st.text(alphabet="aBc1, .\n中文éπ\u0301", max_size=40), max_size=6)


def separate(values, ends):
    return [part.tolist() for part in np.split(values, ends[:-1])] if len(ends) else []


def words_of(text):
    found = words([text])
    return found.hashes.tolist()


def test_a_word_is_letters_and_digits_in_one_case():
    assert words_of("The cat, the CAT; (the cat)") == words_of("the cat") * 3
    assert len(set(words_of("the cat sat on a mat 12 1 2 21"))) == 10
    assert words_of("Straße") == words_of("STRASSE")
    assert words_of(" -- ... \n\t—“”") == [] == words_of("")


def test_a_character_of_a_script_without_spaces_is_a_word():
    assert len(words_of("他们是谁")) == 4
    assert words_of("是谁") == words_of("他们是谁")[2:]
    assert len(words_of("これはcat です")) == 6
    assert len(words_of("Это предложение")) == 2


def test_hashes_are_those_of_every_process_and_every_version():
    expected = [3869343042603132125, 7719988617686786939, 12941988724307623726]
    assert words(["The cat 他 sat"]).shingles(2).hashes.tolist() == expected


@given(TEXTS)
def test_texts_together_have_the_words_and_shingles_of_each_alone(texts):
    found = words(texts)
    assert separate(found.hashes, found.ends) == [words_of(text) for text in texts]
    for n in (1, 3, 5):
        shingles = found.shingles(n)
        alone = [words([text]).shingles(n).hashes.tolist() for text in texts]
        assert separate(shingles.hashes, shingles.ends) == alone
        starts = [0, *found.ends.tolist()]
        for text, (places, own) in enumerate(zip(separate(shingles.places, shingles.ends), alone, strict=True)):
            assert places == list(range(starts[text], starts[text] + len(own)))


@given(st.lists(st.sampled_from(["a", "b", "c", "dd"]), max_size=12), st.integers(1, 6))
def test_shingles_are_equal_exactly_where_their_words_are(tokens, n):
    shingles = words([" ".join(tokens)]).shingles(n).hashes.tolist()
    expected = [tuple(tokens[i : i + n]) for i in range(max(1, len(tokens) - n + 1))] if tokens else []
    assert len(shingles) == len(expected)
    for i, one in enumerate(shingles):
        for j, other in enumerate(shingles):
            assert (one == other) == (expected[i] == expected[j])


def test_a_text_is_longer_than_what_is_hashed_at_once():
    text = "word and word, " * CHARACTERS_AT_ONCE
    assert set(words_of(text)) == set(words_of("word and"))
    assert len(words_of(text)) == 3 * CHARACTERS_AT_ONCE


@given(st.lists(st.integers(0, CHARACTERS_AT_ONCE + 5), max_size=20))
def test_batches_hold_every_text_in_order_and_few_characters(lengths):
    texts = [str(i) + "x" * length for i, length in enumerate(lengths)]
    groups = list(batches(texts, str))
    assert [text for group in groups for text in group] == texts
    assert all(len(group) == 1 or sum(map(len, group)) <= CHARACTERS_AT_ONCE for group in groups)
