"""What a survey of a folder says is what its files hold."""

import json

import pytest

from plm_core.config import UserError
from plm_core.corpus.clean import CleanConfig
from plm_core.corpus.rules import Bounds
from plm_core.corpus.survey import LOOKED_AT, survey

ENGLISH = "The weather was fine that day, and so we went for a long walk along the river. "


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_text_files_are_documents(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"Ä{number}")
    found = survey(tmp_path)
    assert (found.pattern, found.text_field, found.id_field) == ("**/*", "text", None)
    assert (found.documents, found.quarantined, found.bytes, found.characters) == (5, 0, 15, 6)


def test_the_field_with_the_longest_texts_is_the_text_and_a_unique_one_the_id(tmp_path):
    write(tmp_path / "a.jsonl", [{"id": i, "key": "x", "title": "t", "body": ENGLISH} for i in range(7)])
    found = survey(tmp_path)
    assert (found.text_field, found.id_field) == ("body", "id")
    write(tmp_path / "b.jsonl", [{"id": 3, "body": ENGLISH}, {"id": 8}])
    found = survey(tmp_path)
    assert (found.id_field, found.documents, found.quarantined) == (None, 8, 1)
    write(tmp_path / "a.jsonl", [{"text": "so", "body": ENGLISH}])
    assert survey(tmp_path / "a.jsonl").text_field == "text"


def test_files_whose_text_has_another_name_are_left_out_by_the_pattern(tmp_path):
    write(tmp_path / "a.jsonl", [{"body": ENGLISH}] * 99)
    (tmp_path / "b.csv").write_text("comment,number\nfine,1\n")
    (tmp_path / "c.txt").write_text("A note.")
    assert survey(tmp_path).pattern == "**/*.jsonl*"
    (tmp_path / "b.csv").write_text("body,number\nfine,1\n")
    found = survey(tmp_path)
    assert (found.pattern, found.documents) == ("**/*", 101)


def test_the_sample_is_bounded_and_comes_from_all_over_the_folder(tmp_path):
    write(tmp_path / "a.jsonl", [{"text": f"{number}"} for number in range(9 * LOOKED_AT)])
    numbers = [int(document.text) for document in survey(tmp_path).sample]
    assert LOOKED_AT <= len(numbers) < 2 * LOOKED_AT
    assert numbers == [*range(0, 9 * LOOKED_AT, numbers[1])]


def test_the_language_of_nearly_all_and_what_rules_keep_are_measured(tmp_path):
    write(tmp_path / "a.jsonl", [{"text": (ENGLISH * 2).strip()}] * 30)
    found = survey(tmp_path)
    assert found.common_language().keep == ("en",)
    assert found.kept(CleanConfig(documents={"words": Bounds(min=5)})) == 1
    assert found.kept(CleanConfig(documents={"words": Bounds(min=50)})) == 0
    write(tmp_path / "b.jsonl", [{"text": "Das Wetter war schön, und wir gingen am Fluss spazieren. "}] * 5)
    assert survey(tmp_path).common_language() is None


def test_a_folder_without_text_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing to read in it"):
        survey(tmp_path)
    (tmp_path / "a.jsonl").write_text("{\n")
    with pytest.raises(UserError, match="no document in it"):
        survey(tmp_path)
