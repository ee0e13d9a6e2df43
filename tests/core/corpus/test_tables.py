"""Rows reach the disk a few at a time and come back as they were; a table is whole or absent."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.removal import Removal, read_removals, removal_writer
from plm_core.corpus.tables import CHARACTERS_AT_ONCE, ROWS_AT_ONCE, read_rows, row_writer

NUMBERS = st.none() | st.integers(0, 2**31 - 1)
SCHEMA = pa.schema([("text", pa.string())])


@given(st.lists(st.builds(Removal, st.text(), NUMBERS, st.text(), st.text(), st.text(), st.text()), max_size=7))
def test_removals_come_back_as_they_were_written(tmp_path_factory, removals):
    path = tmp_path_factory.mktemp("removals") / "folder" / "x.parquet"
    with removal_writer(path) as writer:
        for removal in removals:
            writer.write(removal)
    assert writer.count == len(removals)
    assert list(read_removals(path)) == removals


def test_a_table_without_a_row_has_its_columns(tmp_path):
    with removal_writer(tmp_path / "x.parquet"):
        pass
    table = pq.read_table(tmp_path / "x.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "document": "string",
        "paragraph": "int32",
        "source": "string",
        "rule": "string",
        "value": "string",
        "text": "string",
    }


def groups(path):
    with pq.ParquetFile(path) as file:
        return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


def test_rows_are_held_by_number_and_by_size(tmp_path):
    path = tmp_path / "x.parquet"
    with row_writer(path, SCHEMA, lambda text: {"text": text}) as writer:
        for _ in range(ROWS_AT_ONCE + 5):
            writer.write("short")
        writer.write("x" * CHARACTERS_AT_ONCE)
        writer.write("y" * (CHARACTERS_AT_ONCE - 1))
        writer.write("last")
        writer.write("after")
    assert groups(path) == [ROWS_AT_ONCE, 6, 2, 1]
    assert [row["text"][-5:] for row in read_rows(path, SCHEMA)][-4:] == ["xxxxx", "yyyyy", "last", "after"]


def test_what_fails_while_rows_are_written_leaves_the_old_table(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"old")

    def write_and_fail():
        with row_writer(path, SCHEMA, lambda text: {"text": text}) as writer:
            for _ in range(ROWS_AT_ONCE + 1):
                writer.write("new")
            raise KeyError("something else")

    with pytest.raises(KeyError, match="something else"):
        write_and_fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
