"""Entities and answers: cases made by hand after the definitions of seqeval and of SQuAD's scripts."""

import pytest

from plm_core.evaluation.example_counts import answer_f1, entities, exact_match, normalized_answer


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-PER", [(0, 1, "PER")]),
        ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),  # I of another type ends it and begins another
        ("B-PER I-LOC I-PER", [(0, 1, "PER"), (1, 2, "LOC"), (2, 3, "PER")]),
        ("I-PER I-PER O", [(0, 2, "PER")]),  # begun by no B
        ("O I-PER B-PER I-PER", [(1, 2, "PER"), (2, 4, "PER")]),
        ("B-a-b I-a-b", [(0, 2, "a-b")]),
    ],
)
def test_entities_match_conlleval(tags, expected):
    assert entities(tags.split()) == expected


@pytest.mark.parametrize("tag", ["PER", "X-PER", "B-", "B", "", "o"])
def test_a_tag_of_another_scheme_is_named(tag):
    with pytest.raises(ValueError, match=f"^tag 2: found '{tag}'; expected O, B-<type> or I-<type>"):
        entities(["O", tag])


def test_answers_are_compared_without_case_punctuation_articles_and_white_space():
    assert normalized_answer(" The  U.S. Congress,\tin an\nAge ") == "us congress in age"
    assert normalized_answer("A") == normalized_answer("the.") == ""
    assert normalized_answer("theory of another") == "theory of another"


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1.0, 1.0),
        ("the Denver Broncos!", ["denver broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),
        ("Broncos", ["Carolina Panthers", "Broncos"], 1.0, 1.0),  # the nearest counts
        ("of the Denver Broncos team", ["Denver Broncos", "Broncos"], 0.0, 4 / 6),
        ("to be be", ["be to be or"], 0.0, 6 / 7),  # a word as often as it stands
        ("Panthers", ["Broncos"], 0.0, 0.0),
        ("", [], 1.0, 1.0),  # SQuAD 2.0: no answer
        ("", ["Broncos"], 0.0, 0.0),
        ("Broncos", [], 0.0, 0.0),
        ("a", ["the"], 1.0, 1.0),  # nothing is left of either
    ],
)
def test_squad_scores_by_hand(prediction, answers, exact, f1):
    assert exact_match(prediction, answers) == exact
    assert answer_f1(prediction, answers) == pytest.approx(f1)
