"""Documents come sorted by their ids, from memory or from runs on the disk, and a few of them are in memory."""

import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plm_core.corpus import order
from plm_core.corpus.document import Document
from plm_core.corpus.order import Sorter

IDS = st.lists(st.text(alphabet="aB19é日𝔘/", min_size=1))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(IDS, st.integers(1, 1000), st.integers(2, 4))
def test_documents_come_in_the_order_of_their_ids_and_those_with_one_id_as_they_came(
    tmp_path_factory, ids, limit, runs
):
    documents = [Document(name, "x" * (i % 7), "s", {"n": i}) for i, name in enumerate(ids)]
    sorter = Sorter(tmp_path_factory.mktemp("runs"), limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "MOST_RUNS", runs)
        for document in documents:
            sorter.add(document)
    assert list(sorter.documents()) == sorted(documents, key=lambda d: d.id)


def test_few_files_are_open_however_much_is_sorted(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "MOST_RUNS", 5)
    sorter = Sorter(tmp_path, 1)
    names = random.Random(3).sample(range(1000), 99)
    for name in names:
        sorter.add(Document(f"{name:03}", "text", "s"))
        assert len(list(tmp_path.iterdir())) <= 4 + 4 + 3  # merged never, once and twice
    assert [document.id for document in sorter.documents()] == [f"{name:03}" for name in sorted(names)]


PROGRAM = """
import random, resource, sys
from pathlib import Path
from plm_core.corpus.document import Document, write_documents
from plm_core.corpus.order import Sorter
draw, sorter = random.Random(1), Sorter(Path(sys.argv[1]), 8_000_000)
for i in range(int(sys.argv[2])):
    sorter.add(Document(str(draw.random()), draw.randbytes(5_000).hex(), "s"))
print(write_documents(Path(sys.argv[1]) / "out.parquet", sorter.documents()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_documents(tmp_path):
    """10 MB and 80 MB of text are sorted in 8 million characters of memory; the rest is of a process with Arrow."""
    peaks = []
    for count in (1000, 8000):
        (tmp_path / str(count)).mkdir()
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / str(count)), str(count)]
        written, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(written) == count
        peaks.append(int(peak))
    assert peaks[1] - peaks[0] < 60, peaks


def test_what_is_held_is_counted_with_its_fields_and_objects(tmp_path):
    sorter = Sorter(tmp_path, 1_000_000)
    for i in range(100):
        sorter.add(Document(str(i), "x", "s", {"field": "y" * 20_000}))
    assert len(list(tmp_path.glob("run-*"))) == 2
    for i in range(100, 5100):
        sorter.add(Document(str(i), "x", "s"))
    assert len(list(tmp_path.glob("run-*"))) > 3
    assert len(list(sorter.documents())) == 5100
