"""Small files and texts that would take much memory or time: what is held is bounded, and each is accounted for."""

import re
import subprocess
import sys
import tracemalloc
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.benchmarks.examples import NUMBER
from plm_core.corpus.masking import mask
from plm_core.corpus.measures.text import Text
from plm_core.corpus.normalize import MARKS_AT_ONCE, normalize
from plm_core.corpus.quarantine import EXCERPT, Refused, quarantined
from plm_core.corpus.sources import SOURCES, open_source

PEAK = """
import sys
from collections import Counter
from pathlib import Path
from plm_core.corpus.sources import SOURCES, open_source

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024

def read(path):
    source = SOURCES["folder"](path, max_record_bytes=int(sys.argv[3]))
    return Counter(getattr(record, "reason", "document") for record in open_source("own", source))

read(sys.argv[1])
before = peak()
print(*sorted(read(sys.argv[2]).items()), peak() - before)
"""
TEXT = "x" * 4_000_000


def rows(**how):
    def write(path):
        pq.write_table(pa.table({"text": [TEXT] * 64}), path, compression="zstd", **how)

    return write


BOMBS = {
    "shared.parquet": (rows(), 1_000_000, "('too_long', 64)"),
    "prefixes.parquet": (
        rows(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}),
        1_000_000,
        "('too_long', 64)",
    ),
    "allowed.parquet": (rows(), 100_000_000, "('document', 64)"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_a_file_takes_in_memory_is_bounded_whatever_it_unfolds_to(project, tmp_path, name):
    write, limit, expected = BOMBS[name]
    write(tmp_path / name)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "small.parquet")
    command = [sys.executable, "-c", PEAK, tmp_path / "small.parquet", tmp_path / name, str(limit)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    found, _, grown = done.stdout.strip().rpartition(" ")
    assert found == expected
    assert int(grown) < 200


def read(path, **fields):
    return list(open_source("own", SOURCES["folder"](str(path), **fields)))


def test_a_link_that_leads_out_of_the_folder_is_quarantined_and_one_within_is_read(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/other.txt").write_text("secret")
    inside = tmp_path / "data"
    inside.mkdir()
    (inside / "a.txt").write_text("text")
    (inside / "b.txt").symlink_to("a.txt")
    (inside / "c.txt").symlink_to("../secret.txt")
    (inside / "more").symlink_to(tmp_path / "outside")
    with pytest.warns(UserWarning, match="more: a link to a folder"):
        found = read(inside, pattern="*/*")
    assert [(r.place, r.reason) for r in found] == [(f"{inside}/more/other.txt", "outside_folder")]
    with pytest.warns(UserWarning, match="more: a link to a folder"):
        *good, bad = read(inside)
    assert [r.text for r in good] == ["text", "text"]
    assert (bad.place, bad.reason, bad.excerpt) == (f"{inside}/c.txt", "outside_folder", "")
    assert f"a link to {tmp_path}/secret.txt; expected a file in the folder" in bad.detail
    (tmp_path / "link").symlink_to("data")
    with pytest.warns(UserWarning, match="more: a link to a folder"):
        assert len(read(tmp_path / "link")) == 3


def test_of_a_long_id_or_name_of_a_field_only_the_beginning_is_looked_at():
    refused = Refused("r", "é\n" * 1_000_000)
    tracemalloc.start()
    assert len(quarantined("x:1", refused, "").detail) == EXCERPT
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100_000


def test_no_more_marks_in_a_row_are_sorted_than_any_script_has():
    text = "a" + "\u0323\u0301" * (2 * MARKS_AT_ONCE)
    shorter = "\u1ea1" + "\u0323" * (MARKS_AT_ONCE // 2 - 1) + "\u0301" * (MARKS_AT_ONCE // 2) + "b"
    assert normalize(text).replace("\u034f", "") != normalize(text)
    assert normalize(shorter) == unicodedata.normalize("NFC", shorter)


@given(st.lists(st.tuples(st.sampled_from("aé\u0958\u0344\u0f73\u0301\u0323\u1d160\U0001e94a가"), st.integers(1, 250))))
def test_text_in_normal_form_is_its_own_normal_form(pieces):
    found = normalize("".join(character * count for character, count in pieces))
    assert normalize(found) == found == unicodedata.normalize("NFC", found)
    assert not re.search(f"[\u0301\u0308\u0323]{{{MARKS_AT_ONCE + 1}}}", found)


LINEAR = {
    "sentences": (lambda text: Text(text).sentences, "." * 400_000 + "x"),
    "closed sentences": (lambda text: Text(text).sentences, "." + ")" * 400_000 + "x"),
    "marks": (normalize, "a" + "\u0323\u0301" * 500_000),
    "numbers": (NUMBER.fullmatch, "1" * 400_000 + "x"),
    "addresses": (lambda text: mask(text, ["email", "ip", "phone"]), "a@" + "a." * 200_000 + "@"),
    "signs": (lambda text: mask(text, ["email", "ip", "phone"]), "@a.1.+1:2:" * 100_000),
}


@pytest.mark.parametrize("name", LINEAR)
def test_no_text_takes_a_time_that_grows_faster_than_the_text(name):
    """With its square it would be more than the ten minutes after which any test has failed."""
    work, text = LINEAR[name]
    work(text)
