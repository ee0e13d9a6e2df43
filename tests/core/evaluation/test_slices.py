"""Slices are the parts that their names say, and a damaged table is a clear error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.evaluation.answers import Answers
from plm_core.evaluation.example_slices import Facts, read_slices, slices


def answers(labels, predictions, score="matthews", classes=("no", "yes")):
    rows = np.arange(len(labels))
    return Answers(score, np.array(labels), np.array([predictions]), rows % 2, classes, ("one", "two"), rows)


def named(parts, kind):
    return {part.name: np.flatnonzero(part.members).tolist() for part in parts if part.kind == kind}


def test_slices_of_every_kind_by_hand():
    facts = [
        Facts(words, subset, share)
        for words, subset, share in zip(
            [9, 3, 3, 5, 7, 5, 40, 8], "mnmnmnmn", [0, 0, 0.1, 0.499, 0.5, 1.0, 0, 0], strict=True
        )
    ]
    parts = slices(facts, answers([0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 1, 1, 0]))
    assert named(parts, "length") == {
        "up to 3 words": [1, 2],
        "4 to 5 words": [3, 5],
        "6 to 8 words": [4, 7],
        "more than 8 words": [0, 6],
    }
    assert named(parts, "source") == {"m": [0, 2, 4, 6], "n": [1, 3, 5, 7]}
    assert named(parts, "label") == {"no": [0, 1, 2], "yes": [3, 4, 5, 6, 7]}
    assert named(parts, "overlap") == {"none": [0, 1, 6, 7], "below half": [2, 3], "half and more": [4, 5]}
    by_name = {part.name: part.results for part in parts}
    assert by_name["no"].score == "accuracy"
    assert by_name["no"].values(np.ones((1, 3))).item() == pytest.approx(2 / 3)
    assert by_name["none"].score == "matthews"
    assert by_name["none"].labels.tolist() == [0, 0, 1, 1]
    assert {subset for part in parts for subset in part.results.subsets} == {""}


def test_a_slice_of_one_length_is_named_by_it():
    parts = slices([Facts(words, "", 0.0) for words in (4, 5, 6, 6, 7, 9, 9, 9)], answers([0, 1] * 4, [0] * 8))
    assert list(named(parts, "length")) == ["up to 5 words", "6 words", "more than 6 words"]


def test_slices_of_numbers_are_thirds():
    parts = slices([Facts(4, "", 0.0)] * 6, answers([5.0, 0.5, 1.0, 2.0, 2.5, 4.0], [0.0] * 6, "pearson", ()))
    assert named(parts, "label") == {"up to 1": [1, 2], "above 1 to 2.5": [3, 4], "more than 2.5": [0, 5]}
    assert named(parts, "length") == {"all words": [0, 1, 2, 3, 4, 5]}
    assert named(parts, "source") == {}
    assert named(parts, "overlap") == {"none": [0, 1, 2, 3, 4, 5]}
    assert all(part.scored for part in parts)


def test_slice_of_equal_numbers_has_no_correlation():
    grades = slices([Facts(4, "", 0.0)] * 6, answers([1.0, 1.0, 2.0, 2.0, 3.0, 4.0], [0.5] * 6, "pearson", ()))
    assert {part.name for part in grades if not part.scored} == {"up to 1", "above 1 to 2"}
    assert all(part.scored for part in slices([Facts(4, "", 0.0)] * 4, answers([0, 0, 1, 1], [0, 1, 1, 1])))


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40), shares=st.data())
def test_slices_of_a_kind_are_disjoint(lengths, shares):
    facts = [Facts(n, "", shares.draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))) for n in lengths]
    parts = slices(facts, answers([0] * len(facts), [1] * len(facts)))
    for kind in ("length", "label", "overlap"):
        members = [part.members for part in parts if part.kind == kind]
        assert np.sum(members, axis=0).tolist() == [1] * len(facts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"run the stage that writes it \(`dvc repro slices`\)"),
        ("id,words,subset\n1,3,\n", r"t\.csv:2: KeyError\('overlap'\); expected id,words,subset,overlap"),
        ("id,words,subset,overlap\n1,3,,0.5\n2,many,,0\n", r"t\.csv:3: ValueError.*dvc checkout"),
        ("id,words,subset,overlap\n1,3\n", r"t\.csv:2: TypeError"),
    ],
)
def test_slices_name_a_missing_or_damaged_table(tmp_path, text, message):
    if text:
        (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_slices(tmp_path / "t.csv")
