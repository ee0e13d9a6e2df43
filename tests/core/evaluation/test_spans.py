"""Entities and answers: cases made by hand after the definitions of seqeval and of SQuAD's scripts."""

import pytest

from plm_core.evaluation.spans import answer_f1, entities, entity_f1, exact_match, normalized_answer


@pytest.mark.parametrize(
    ("tags", "found"),
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
def test_entities_are_those_of_conlleval(tags, found):
    assert entities(tags.split()) == found


@pytest.mark.parametrize("tag", ["PER", "X-PER", "B-", "B", "", "o"])
def test_a_tag_of_another_scheme_is_named(tag):
    with pytest.raises(ValueError, match=f"^tag 2: found '{tag}'; expected O, B-<type> or I-<type>"):
        entities(["O", tag])


@pytest.mark.parametrize(
    ("said", "true", "f1"),
    [
        (["B-PER I-PER O"], ["B-PER I-PER O"], 1.0),
        (["B-PER O O"], ["B-PER I-PER O"], 0.0),  # another end
        (["B-LOC I-LOC O"], ["B-PER I-PER O"], 0.0),  # another type
        (["O O O", "B-LOC O"], ["B-PER O O", "B-LOC O"], 2 / 3),  # all of one, half of two
        (["B-PER B-LOC O", "B-LOC O"], ["B-PER O O", "B-LOC O"], 4 / 5),
        (["O O"], ["O O"], 0.0),  # none to find
        (["O O"], ["B-PER O"], 0.0),
        # The same place in another sentence is another entity; both sentences count as one set.
        (["B-PER", "O"], ["O", "B-PER"], 0.0),
    ],
)
def test_entity_f1_of_cases_made_by_hand(said, true, f1):
    assert entity_f1([tags.split() for tags in said], [tags.split() for tags in true]) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("said", "true", "message"),
    [
        ([], [], "0 sentences for 0"),
        ([["O"]], [], "1 sentences for 0"),
        ([["O"], ["O"]], [["O"], ["O", "O"]], "sentence 2: 1 tags for 2"),
    ],
)
def test_sentences_that_do_not_match_are_an_error(said, true, message):
    with pytest.raises(ValueError, match=message):
        entity_f1(said, true)


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
def test_squads_scores_of_cases_made_by_hand(prediction, answers, exact, f1):
    assert exact_match(prediction, answers) == exact
    assert answer_f1(prediction, answers) == pytest.approx(f1)
