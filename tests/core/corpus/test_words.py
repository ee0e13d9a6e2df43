"""The words of a text: between white space, or each character where a script puts none between words."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.normalize import UNSPACED, shortened, words_of

SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "YI SYLLABLE")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n a.我。かทà"), max_size=30)


def test_the_letters_that_are_words_are_those_of_the_scripts_without_spaces():
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
def test_without_such_characters_words_are_what_stands_between_white_space(text):
    assert "".join(words_of(text)) == "".join(text.split())
    spaced = re.sub(f"[{UNSPACED}]", "", text)
    assert words_of(spaced) == spaced.split()


@given(text=TEXTS, words=st.integers(1, 9))
def test_a_shortened_text_is_a_beginning_or_an_end_of_the_text_with_so_many_words(text, words):
    first, last = shortened(text, words), shortened(text, words, last=True)
    assert text.startswith(first)
    assert text.endswith(last)
    every = words_of(text)
    for short, kept in ((first, every[:words]), (last, every[-words:])):
        assert words_of(short) == kept
        assert (short == text) == (len(every) <= words)
    assert shortened(text, None) == shortened(text, None, last=True) == text
