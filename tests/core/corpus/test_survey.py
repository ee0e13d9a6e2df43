"""What a survey of a folder says is what its files hold."""

import json
from dataclasses import asdict

import pytest

from plm_core.config import UserError
from plm_core.corpus.sources.folder_source import Folder
from plm_core.corpus.survey import LOOKED_AT, survey

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 7\n"

ENGLISH = "The weather was fine that day, and so we went for a long walk along the river. "


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def stated(path):
    """What the sources state that a folder makes, beside its name."""
    return [
        {name: value for name, value in asdict(surveyed.source).items() if value != getattr(Folder(str(path)), name)}
        for surveyed in survey(path)
    ]


def test_survey_takes_longest_field_as_text_and_unique_one_as_id(tmp_path):
    write(tmp_path / "a.jsonl", [{"id": i, "key": "x", "title": "t", "body": ENGLISH} for i in range(7)])
    assert stated(tmp_path) == [{"text_field": "body", "id_field": "id"}]
    write(tmp_path / "b.jsonl", [{"id": 3, "body": ENGLISH}, {"id": 8}])
    (surveyed,) = survey(tmp_path)
    assert (surveyed.source.id_field, surveyed.documents, surveyed.quarantined) == (None, 8, 1)
    write(tmp_path / "a.jsonl", [{"text": "so", "body": ENGLISH}])
    assert stated(tmp_path / "a.jsonl") == [{}]


def test_survey_leaves_out_tables_without_text(tmp_path):
    (tmp_path / "a.txt").write_text(ENGLISH)
    (tmp_path / "b.csv").write_text("author,year\nGrey,1871\n")
    with pytest.warns(UserWarning, match=r"1 \.csv files are left out; no field of text among author, year"):
        assert stated(tmp_path) == [{"formats": ["txt"]}]


def test_survey_ignores_git_lfs_pointers(tmp_path):
    (tmp_path / "a.txt").write_text(ENGLISH)
    (tmp_path / "b.txt").write_text(POINTER)
    with pytest.raises(UserError, match=r"b\.txt:1: a pointer of Git LFS, .* `git lfs pull`"):
        survey(tmp_path)


@pytest.mark.parametrize(
    ("text", "split", "documents"),
    [
        ("\n\n".join(f"{i} {ENGLISH * 3}\n{ENGLISH}" for i in range(40)), "blank_lines", 40),
        ("\n".join(f"{i} {ENGLISH * 3}" for i in range(50)), "lines", 50),
        ("\n".join(f"{i} {ENGLISH}" for i in range(800)), 13, 31),
        ("\n\n".join(f"A:\nSay {i}." for i in range(2000)), 100, 40),
        ("\n".join(ENGLISH * 20 for _ in range(7)), None, 1),
    ],
)
def test_survey_divides_large_texts_into_documents(tmp_path, text, split, documents):
    (tmp_path / "all.txt").write_text(text)
    (surveyed,) = survey(tmp_path)
    assert (surveyed.source.split, surveyed.documents) == (split, documents)


def test_survey_sample_is_bounded_and_spans_the_folder(tmp_path):
    write(tmp_path / "a.jsonl", [{"text": f"{number}"} for number in range(9 * LOOKED_AT)])
    numbers = [int(document.text) for document in survey(tmp_path)[0].sample]
    assert LOOKED_AT <= len(numbers) < 2 * LOOKED_AT
    assert numbers == [*range(0, 9 * LOOKED_AT, numbers[1])]
