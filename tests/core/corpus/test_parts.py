"""Parts hold every document once, in order, and end where the files alone say."""

from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.corpus import document as module
from plm_core.corpus import tables
from plm_core.corpus.document import Document, Texts, parts_of, pieces_of, read_documents, some_of, write_documents
from plm_core.corpus.tables import gather

DOCUMENTS = st.dictionaries(st.text(max_size=3), st.integers(0, 300), min_size=1, max_size=60)


def written(folder, documents, choose, files):
    """The documents in so many files, each sorted by id."""
    groups = [[] for _ in range(files)]
    for document in documents:
        groups[choose(files)].append(document)
    paths = [folder / f"{number}.parquet" for number in range(files)]
    for path, group in zip(paths, groups, strict=True):
        write_documents(path, group)
    return paths


@given(DOCUMENTS, st.integers(1, 3), st.integers(1, 4000), st.randoms(use_true_random=False))
def test_parts_are_the_documents_of_all_files_in_the_order_of_their_ids(tmp_path_factory, texts, files, size, draw):
    folder = tmp_path_factory.mktemp("parts")
    documents = [Document(name, "x" * length, "s") for name, length in sorted(texts.items())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES", size)
        patch.setattr(tables, "ROWS_AT_ONCE", 3)
        paths = written(folder, documents, lambda files: draw.randrange(files), files)
        parts = parts_of(paths)
    found = [list(part.documents()) for part in parts]
    assert [document for part in found for document in part] == documents
    if len(parts) > 1:
        assert all(found)
        assert [part.first for part in parts[1:]] == [part[0].id for part in found[1:]]


def test_a_part_ends_when_it_is_large_enough_and_reads_no_more_than_it_must(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(module, "PART_BYTES", 100_000)
    lengths = [30_000] * 10 + [900_000] + [30_000] * 10
    documents = [Document(f"{i:02}", f"{i:030000}" * (length // 30_000), "s") for i, length in enumerate(lengths)]
    write_documents(tmp_path / "x.parquet", documents)
    parts = parts_of([tmp_path / "x.parquet"])
    groups = [range(11)[piece] for part in parts for _, piece in part.pieces]
    assert [number for group in groups for number in group] == list(range(11))
    assert [len(group) for group in groups] == [2, 2, 2, 2, 2, 1]
    assert [list(read_documents(*piece)) for piece in pieces_of(tmp_path / "x.parquet")] == [
        list(part.documents()) for part in parts
    ]


def test_there_are_so_many_parts_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(module, "PART_BYTES", 1)
    write_documents(tmp_path / "x.parquet", [Document(f"{i:02}", "x" * 500, "s") for i in range(60)])
    assert len(parts_of([tmp_path / "x.parquet"])) == len(pieces_of(tmp_path / "x.parquet")) == 60
    monkeypatch.setattr(module, "MOST_PARTS", 7)
    assert len(parts_of([tmp_path / "x.parquet"])) == len(pieces_of(tmp_path / "x.parquet")) <= 7


@given(st.integers(1, 40), st.integers(1, 60_000))
def test_some_texts_are_as_many_as_may_be_and_evenly_spread(tmp_path_factory, count, most):
    folder = tmp_path_factory.mktemp("some")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ROWS_AT_ONCE", 1)
        for file, numbers in (("0", range(count)), ("1", range(count, 2 * count))):
            write_documents(folder / f"{file}.parquet", [Document(f"{i:02}", f"{i:01000}", "s") for i in numbers])
    group = pq.read_metadata(folder / "0.parquet").row_group(0).total_byte_size
    pieces, share = some_of(folder, most)
    texts = Texts(pieces)
    chosen = [int(text) for text in texts]
    assert chosen == list(map(int, texts))
    assert len(chosen) == min(2 * count, max(1, most // group))
    assert share == len(chosen) / (2 * count)
    gaps = {after - before for before, after in pairwise([*chosen, 2 * count])}
    assert chosen[0] == 0
    assert max(gaps) - min(gaps) <= 1


def test_a_table_may_be_a_folder_of_files_and_is_read_in_their_order(tmp_path):
    documents = [Document(f"{i:03}", f"text {i}", "s") for i in range(30)]
    for number in range(4):
        write_documents(tmp_path / f"part-{number}.parquet", documents[10 * number : 10 * number + 10])
    gather(sorted(tmp_path.glob("part-*")), tmp_path / "all.parquet")
    table = tmp_path / "all.parquet"
    assert [path.name for path in sorted(table.iterdir())] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert list(read_documents(table)) == documents
    assert [document for part in parts_of([table]) for document in part.documents()] == documents
    assert pq.read_table(table).num_rows == 30
    # Where they come from they still are.
    assert list(read_documents(tmp_path / "part-0.parquet")) == documents[:10]


def test_where_files_cannot_be_linked_they_are_copied(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(tables.os, "link", refuse)
    write_documents(tmp_path / "x.parquet", [Document("a", "text", "s")])
    gather([tmp_path / "x.parquet"], tmp_path / "all.parquet")
    assert list(read_documents(tmp_path / "all.parquet")) == [Document("a", "text", "s")]


def test_files_that_are_not_sorted_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 2)
    write_documents(tmp_path / "x.parquet", [Document(name, "t", "s") for name in "abdc"])
    write_documents(tmp_path / "y.parquet", [Document(name, "t", "s") for name in "cdab"])
    with pytest.raises(UserError, match=r"y\.parquet: the id 'a' comes after 'c'; expected unique ids in order"):
        parts_of([tmp_path / "y.parquet"])
    with pytest.raises(UserError, match=r"x\.parquet: the id 'c' comes after 'd'"):
        [list(part.documents()) for part in parts_of([tmp_path / "x.parquet"])]
