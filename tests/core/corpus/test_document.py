"""Documents survive the disk unchanged; a file that is no corpus is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.corpus.document import Document, merge_documents, read_documents, write_documents

METADATA = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3)


@given(st.lists(st.builds(Document, st.text(), st.text(), st.text(), METADATA), max_size=7))
def test_documents_come_back_as_they_were_written(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("documents") / "x.parquet"
    assert write_documents(path, iter(documents)) == len(documents)
    assert list(read_documents(path)) == documents


def other_tables(path):
    """Files that somebody may take for a corpus."""
    yield lambda: None
    yield lambda: path.write_bytes(b"")
    yield lambda: path.write_bytes(b"PAR1 no parquet PAR1")
    yield lambda: pq.write_table(pa.table({"text": ["x"]}), path)
    yield lambda: pq.write_table(pa.table({n: ["{"] for n in ("id", "text", "source", "metadata")}), path)


@pytest.mark.parametrize("which", range(5), ids=["missing", "empty", "garbage", "other columns", "broken metadata"])
def test_a_file_that_is_no_corpus_is_named(tmp_path, which):
    path = tmp_path / "x.parquet"
    list(other_tables(path))[which]()
    with pytest.raises(UserError, match=r"x\.parquet"):
        list(read_documents(path))


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


IDS = st.lists(st.text(max_size=3), unique=True, max_size=20)


@given(IDS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_documents_of_several_files_come_in_the_order_of_their_ids(tmp_path_factory, ids, files, random):
    folder = tmp_path_factory.mktemp("merged")
    parts = [[] for _ in range(files)]
    for name in sorted(ids):
        random.choice(parts).append(Document(name, f"text of {name}", "s"))
    paths = [folder / f"{i}.parquet" for i in range(files)]
    for path, part in zip(paths, parts, strict=True):
        write_documents(path, part)
    merged = merge_documents([(path, slice(None)) for path in paths])
    assert list(merged) == [Document(name, f"text of {name}", "s") for name in sorted(ids)]


@pytest.mark.parametrize("ids", [("a", "c", "b"), ("a", "a", "b"), ("b", "c", "a")])
def test_ids_out_of_order_or_twice_are_refused(tmp_path, ids):
    write_documents(tmp_path / "x.parquet", [Document(i, "t", "s") for i in ids[:2]])
    write_documents(tmp_path / "y.parquet", [Document(i, "t", "s") for i in ids[2:]])
    write_documents(tmp_path / "z.parquet", [Document(i, "t", "s") for i in ids])
    with pytest.raises(UserError, match=r"z\.parquet: the id '.' comes after '.'; expected unique ids in order"):
        list(merge_documents([(tmp_path / "z.parquet", slice(None))]))
    if len(set(ids)) < len(ids):
        with pytest.raises(UserError, match=r"x\.parquet, .*y\.parquet: the id 'a' comes after 'a'"):
            list(merge_documents([(tmp_path / name, slice(None)) for name in ("x.parquet", "y.parquet")]))
