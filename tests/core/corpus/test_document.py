"""Rows reach the disk a few at a time and come back as they were; parts hold every document once, in order."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.corpus import document as module
from plm_core.corpus.document import (
    CHARACTERS_AT_ONCE,
    ROWS_AT_ONCE,
    Document,
    Part,
    Texts,
    gather_parts,
    in_parts,
    parts_of,
    pieces_of,
    read_documents,
    read_rows,
    row_writer,
    sample_row_groups,
    write_documents,
)

METADATA = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3)
COLUMN = pa.schema([("text", pa.string())])


@given(st.lists(st.builds(Document, st.text(), st.text(), st.text(), METADATA), max_size=7))
def test_documents_round_trip(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("documents") / "x.parquet"
    assert write_documents(path, iter(documents)) == len(documents)
    assert list(read_documents(path)) == documents


def test_parquet_row_groups_are_bounded_by_rows_and_bytes(tmp_path):
    path = tmp_path / "x.parquet"
    with row_writer(path, COLUMN, lambda text: {"text": text}) as writer:
        for _ in range(ROWS_AT_ONCE + 5):
            writer.write("short")
        writer.write("x" * CHARACTERS_AT_ONCE)
        writer.write("y" * (CHARACTERS_AT_ONCE - 1))
        writer.write("last")
        writer.write("after")
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [ROWS_AT_ONCE, 6, 2, 1]
    assert [row["text"][-5:] for row in read_rows(path, COLUMN)][-4:] == ["xxxxx", "yyyyy", "last", "after"]


BROKEN = pa.table({name: ["{"] for name in ("id", "text", "source", "metadata")})
OTHERS = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"PAR1 no parquet PAR1"),
    "other columns": lambda path: pq.write_table(pa.table({"text": ["x"]}), path),
    "broken metadata": lambda path: pq.write_table(BROKEN, path),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_no_corpus_is_named(tmp_path, name):
    OTHERS[name](tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet"):
        list(read_documents(tmp_path / "x.parquet"))


def test_a_damaged_corpus_is_named_or_harmless(tmp_path, documents):
    path = tmp_path / "x.parquet"
    write_documents(path, documents)
    whole = path.read_bytes()
    refusals = []
    for place in range(0, len(whole), max(1, len(whole) // 199)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            list(read_documents(path))
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > 99
    assert all("x.parquet" in refusal for refusal in refusals)


@pytest.mark.parametrize("ids", [("a", "c", "b"), ("a", "a", "b"), ("b", "c", "a")])
def test_unsorted_or_duplicate_ids_are_refused(tmp_path, ids):
    write_documents(tmp_path / "x.parquet", [Document(i, "t", "s") for i in ids[:2]])
    write_documents(tmp_path / "y.parquet", [Document(i, "t", "s") for i in ids[2:]])
    write_documents(tmp_path / "z.parquet", [Document(i, "t", "s") for i in ids])
    with pytest.raises(UserError, match=r"z\.parquet: the id '.' comes after '.'; expected unique ids in order"):
        list(Part(((tmp_path / "z.parquet", slice(None)),)).documents())
    if len(set(ids)) < len(ids):
        with pytest.raises(UserError, match=r"x\.parquet, .*y\.parquet: the id 'a' comes after 'a'"):
            list(Part(tuple((tmp_path / name, slice(None)) for name in ("x.parquet", "y.parquet"))).documents())


def test_unsorted_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    write_documents(tmp_path / "x.parquet", [Document(name, "t", "s") for name in "abdc"])
    write_documents(tmp_path / "y.parquet", [Document(name, "t", "s") for name in "cdab"])
    with pytest.raises(UserError, match=r"y\.parquet: the id 'a' comes after 'c'; expected unique ids in order"):
        parts_of([tmp_path / "y.parquet"])
    with pytest.raises(UserError, match=r"x\.parquet: the id 'c' comes after 'd'"):
        [list(part.documents()) for part in parts_of([tmp_path / "x.parquet"])]


SIZES = st.dictionaries(st.text(max_size=3), st.integers(0, 300), min_size=1, max_size=60)


@given(SIZES, st.integers(1, 3), st.integers(1, 4000), st.randoms(use_true_random=False))
def test_corpus_parts_merge_files_in_id_order(tmp_path_factory, texts, files, size, draw):
    folder = tmp_path_factory.mktemp("parts")
    documents = [Document(name, "x" * length, "s") for name, length in sorted(texts.items())]
    groups = [[] for _ in range(files)]
    for document in documents:
        draw.choice(groups).append(document)
    paths = [folder / f"{number}.parquet" for number in range(files)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES", size)
        patch.setattr(module, "ROWS_AT_ONCE", 3)
        for path, group in zip(paths, groups, strict=True):
            write_documents(path, group)
        parts = parts_of(paths)
    contents = [list(part.documents()) for part in parts]
    assert [document for part in contents for document in part] == documents
    if len(parts) > 1:
        assert all(contents)
        assert [part.first for part in parts[1:]] == [part[0].id for part in contents[1:]]


def test_corpus_part_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(module, "PART_BYTES", 100_000)
    lengths = [30_000] * 10 + [900_000] + [30_000] * 10
    documents = [Document(f"{i:02}", f"{i:030000}" * (length // 30_000), "s") for i, length in enumerate(lengths)]
    write_documents(tmp_path / "x.parquet", documents)
    parts = parts_of([tmp_path / "x.parquet"])
    groups = [range(11)[piece] for part in parts for _, piece in part.pieces]
    assert [number for group in groups for number in group] == list(range(11))
    # A row group has 60,000 bytes, but one of them 930,000.
    assert all(2 <= len(group) <= 4 for group in groups[:-1])
    assert next(group for group in groups if 5 in group)[-1] == 5
    pieces = [list(read_documents(*piece)) for piece in pieces_of(tmp_path / "x.parquet")]
    assert [document for piece in pieces for document in piece] == documents
    assert all(4 <= len(piece) <= 8 for piece in pieces[:-1])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.integers(0, 199), st.lists(st.integers(1, 60)))
def test_added_text_changes_only_the_parts_near_it(sizes, place, added):
    def parts(named):
        names = [f"{number:03}{letter}" for number, letter, _ in named]
        cuts = in_parts([size for *_, size in named], 1, names)
        return [tuple(names[part]) for part in cuts]

    before = [(number, "", size) for number, size in enumerate(sizes)]
    after = sorted(before + [(place, f"x{number:02}", size) for number, size in enumerate(added[:20])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES", 100)
        old, new = parts(before), parts(after)
    assert [name for part in new for name in part] == [f"{number:03}{letter}" for number, letter, _ in after]
    changed = [part for part in old if part not in new]
    untouched = [part for part in old if part[-1] < f"{place:03}"]
    assert not set(changed) & set(untouched[:-1])


def test_cuts_of_parts_meet_again_after_added_text(monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 100)
    names = [f"{number:04}" for number in range(3000)]
    old = {tuple(names[part]) for part in in_parts([10] * 3000, 1, names)}
    gone = []
    for place in range(0, 3000, 50):
        longer = [*names[:place], "new", *names[place:]]
        gone.append(len(old - {tuple(longer[part]) for part in in_parts([10] * 3001, 1, longer)}))
    assert sorted(gone)[len(gone) // 2] <= 3
    assert max(gone) < len(old) / 10


def test_number_of_corpus_parts_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(module, "PART_BYTES", 1)
    write_documents(tmp_path / "x.parquet", [Document(f"{i:02}", "x" * 500, "s") for i in range(60)])
    assert len(parts_of([tmp_path / "x.parquet"])) == len(pieces_of(tmp_path / "x.parquet")) == 60
    monkeypatch.setattr(module, "MOST_PARTS", 7)
    assert len(parts_of([tmp_path / "x.parquet"])) == len(pieces_of(tmp_path / "x.parquet")) <= 7


@given(st.integers(1, 40), st.integers(1, 60_000))
def test_sampled_row_groups_are_evenly_spread(tmp_path_factory, count, most):
    folder = tmp_path_factory.mktemp("some")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", 1)
        for file, numbers in (("0", range(count)), ("1", range(count, 2 * count))):
            write_documents(folder / f"{file}.parquet", [Document(f"{i:02}", f"{i:01000}", "s") for i in numbers])
    group = pq.read_metadata(folder / "0.parquet").row_group(0).total_byte_size
    pieces, share = sample_row_groups(folder, most)
    texts = Texts(pieces)
    chosen = [int(text) for text in texts]
    assert chosen == list(map(int, texts))
    assert len(chosen) == min(2 * count, max(1, most // group))
    assert share == len(chosen) / (2 * count)
    gaps = {after - before for before, after in pairwise([*chosen, 2 * count])}
    assert chosen[0] == 0
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("linked", [True, False])
def test_table_in_a_folder_is_read_in_file_order(tmp_path, monkeypatch, linked):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    documents = [Document(f"{i:03}", f"text {i}", "s") for i in range(30)]
    for number in range(4):
        write_documents(tmp_path / f"part-{number}.parquet", documents[10 * number : 10 * number + 10])
    if not linked:
        monkeypatch.setattr(module.os, "link", refuse)
    table = tmp_path / "all.parquet"
    gather_parts(sorted(tmp_path.glob("part-*")), table)
    assert [path.name for path in sorted(table.iterdir())] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert list(read_documents(table)) == documents
    assert [document for part in parts_of([table]) for document in part.documents()] == documents
    assert pq.read_table(table).num_rows == 30
    # Where they come from they still are.
    assert list(read_documents(tmp_path / "part-0.parquet")) == documents[:10]
