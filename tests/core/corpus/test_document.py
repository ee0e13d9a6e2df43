"""Documents survive the disk unchanged; a file that is no corpus is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.config import BadInput
from plm_core.corpus.document import ROWS_AT_ONCE, Document, read_documents, sources_of, write_documents

METADATA = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3)


@given(st.lists(st.builds(Document, st.text(), st.text(), st.text(), METADATA), max_size=7))
def test_documents_come_back_as_they_were_written(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("documents") / "x.parquet"
    assert write_documents(path, iter(documents)) == len(documents)
    assert list(read_documents(path)) == documents


@pytest.mark.parametrize("count", [0, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 7, 3 * ROWS_AT_ONCE])
def test_no_document_is_lost_between_two_groups_of_rows(tmp_path, count):
    assert write_documents(tmp_path / "x.parquet", (Document(str(i), "t", "s") for i in range(count))) == count
    assert [d.id for d in read_documents(tmp_path / "x.parquet")] == [str(i) for i in range(count)]


def test_equal_documents_give_equal_bytes(tmp_path, documents):
    for name in ("a", "b"):
        write_documents(tmp_path / name, documents)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


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
    with pytest.raises(BadInput, match=r"x\.parquet"):
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
        except BadInput as error:
            refusals.append(str(error))
    assert len(refusals) > 99
    assert all("x.parquet" in refusal for refusal in refusals)


def test_the_sources_of_a_few_documents_are_found_by_their_rows_and_ids(tmp_path, monkeypatch):
    from plm_core.corpus import document

    monkeypatch.setattr(document, "ROWS_AT_ONCE", 5)  # several groups of rows
    path = tmp_path / "x.parquet"
    write_documents(path, (Document(f"d{i}", "text", f"source {i % 3}") for i in range(13)))
    asked = {0: "d0", 4: "d4", 5: "d5", 12: "d12", 7: "another", 13: "d13", 99: "d99"}
    assert sources_of(path, asked) == {0: "source 0", 4: "source 1", 5: "source 2", 12: "source 0"}
    assert sources_of(path, {}) == {}
    assert sources_of(tmp_path / "none.parquet", asked) == {}
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadInput, match=r"x\.parquet: damaged"):
        sources_of(path, asked)
