"""Every measure, computed by hand on small texts, and on what is no prose at all."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plm_core.corpus.measures import MEASURES, Text

ENDS = 'A.\nB!\nC?\nD"\nE”\nF...\nG\nH…'

BY_HAND = [
    ("characters", "ab c\n", 5),
    ("words", "one two  three\nfour — five", 6),
    ("mean_word_length", "a bb, ccc", 7 / 3),
    ("hashes_per_word", "# a #b c", 2 / 4),
    ("ellipses_per_word", "so ... and … on", 2 / 5),
    ("ellipses_per_word", "......", 2),
    ("bullet_line_share", "- a\n\n• b\nc\nd - e", 2 / 4),
    ("ellipsis_line_share", "a...\nb …\n\nc\nd..", 2 / 4),
    ("alphabetic_word_share", "a1 22 (b) -- é", 3 / 5),
    ("alphabetic_word_share", "Я 他 ² ½ Ⅷ", 2 / 5),
    ("stop_words", "The the be to. with,with have have", 3),
    ("stop_words", "the the", 1),
    ("duplicate_line_share", "a\nb\na\n\na", 2 / 4),
    ("duplicate_line_character_share", "aa\nb\n aa", 2 / 8),
    ("duplicate_paragraph_share", "a\nb\n\nc\n\na\nb", 1 / 3),
    ("duplicate_paragraph_character_share", "a\nb\n\nc\n\na\nb", 3 / 11),
    ("top_2gram_character_share", "a b a b c", 2 * 3 / 9),
    ("top_2gram_character_share", "b c aaa b c aaa", 2 * 3 / 15),
    ("top_2gram_character_share", "a a a a", 3 * 3 / 7),
    ("top_2gram_character_share", "a", 0),
    ("top_3gram_character_share", "a b c a b c d", 2 * 5 / 13),
    ("top_3gram_character_share", "x b c a b c d", 5 / 13),
    ("top_4gram_character_share", "a b c d e", 7 / 9),
    ("top_4gram_character_share", "e aa b c d f aa b c d", 2 * 8 / 21),
    ("duplicate_5gram_character_share", "a b c d e a b c d e", 5 / 19),
    ("duplicate_5gram_character_share", "a a a a a a a a a a a a", 2 * 5 / 23),
    ("duplicate_5gram_character_share", "ab c d e f a bc d e f", 0),
    ("duplicate_6gram_character_share", "a b c d e f x a b c d e f", 6 / 25),
    ("duplicate_7gram_character_share", "a b c d e f g x a b c d e f g", 7 / 29),
    ("duplicate_8gram_character_share", "a b c d e f g h x a b c d e f g h", 8 / 33),
    ("duplicate_9gram_character_share", "a b c d e f g h i x a b c d e f g h i", 9 / 37),
    ("duplicate_9gram_character_share", "a b c d e f g h x a b c d e f g h", 0),
    ("duplicate_10gram_character_share", "a b c d e f g h i jj x a b c d e f g h i jj", 11 / 43),
    ("terminal_line_share", ENDS, 5 / 8),
    ("shortest_line_words", "a b c\n\nd e\nf g h", 2),
    ("sentences", 'Hi. You? "Yes!" he said... Then\nmore', 6),
    ("sentences", "3.5 is it.no", 1),
    ("sentences", "他来了。我走！", 2),
    ("sentences", "(One.) [Two?] Mr. X", 4),
    ("longest_word", "a bbbb cc", 4),
    ("lorem_ipsum", "Lorem IPSUM x lorem ipsum", 2),
    ("curly_brackets", "{ a } {b", 2),
    ("javascript", "JavaScript javascript.js java script", 2),
    ("policy_phrases", "Our Privacy Policy: we use cookies; terms of use", 3),
    ("long_lines", "x" * 200 + "\n" + "y" * 199, 1),
    ("punctuated_line_share", ENDS, 7 / 8),
    ("short_line_share", "x" * 30 + "\n" + "y" * 31 + "\n\nz", 2 / 3),
    ("line_ends_per_word", "a b\n\nc\nd", 2 / 4),
]


@pytest.mark.parametrize(("name", "text", "value"), BY_HAND)
def test_measures_match_counts_by_hand(name, text, value):
    assert MEASURES[name](Text(text)) == pytest.approx(value, rel=1e-12)


def test_every_measure_is_counted_by_hand_to_something_other_than_zero():
    assert {name for name, _, value in BY_HAND if value} == MEASURES.keys()


def every_measure(text):
    """The value of every measure, each a number, and shares no more than 1."""
    measured = Text(text)
    values = {name: measure(measured) for name, measure in MEASURES.items()}
    for name, value in values.items():
        assert math.isfinite(value), name
        assert value >= 0, name
        if name.endswith("_share") and not name.startswith("top_"):
            assert value <= 1, name
    return values


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "c", "😀", "é."]), max_size=40)
ANY = st.text() | WORDS.map(" ".join) | st.text(alphabet="ab .\n-#…{", max_size=60)


@given(ANY)
@example("")
@example("\n\n \n")
@example("👩‍👩‍👧")
def test_measures_are_finite_and_shares_lie_between_0_and_1(text):
    assert text or not any(every_measure(text).values())


@given(WORDS)
def test_repetition_measure_matches_naive_ngram_count(words):
    """The definitions of Gopher's table A1 as datatrove reads them, the slow way."""
    text = " ".join(words)
    for n in (2, 3, 4):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        most = max(grams, key=grams.count, default=())
        expected = len(" ".join(most)) * grams.count(most) / len(text) if grams else 0
        assert MEASURES[f"top_{n}gram_character_share"](Text(text)) == pytest.approx(expected)
    for n in range(5, 11):
        seen, characters, place = set(), 0, 0
        while place <= len(words) - n:
            gram = tuple(words[place : place + n])
            if gram in seen:
                characters += len("".join(gram))
                place += n
            else:
                seen.add(gram)
                place += 1
        expected = characters / len(text) if text else 0
        assert MEASURES[f"duplicate_{n}gram_character_share"](Text(text)) == pytest.approx(expected)
