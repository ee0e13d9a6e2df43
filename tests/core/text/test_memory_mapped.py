"""A process that reads every window of a store maps its pages and copies none: by the kernel's own account."""

import subprocess
import sys

import numpy as np

from plm_core.text.store import write_tokens

TOKENS = 25_000_000  # of two bytes each
READ = """
import sys
from pathlib import Path
from plm_core.text.store import TokenStore
from plm_core.text.samplers import Windows

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

store = TokenStore(Path(sys.argv[1]))
windows = Windows(store, 513, 512)
windows.rows_at(3, 0, 64)  # draws the order of the epoch
before = kilobytes("RssAnon"), kilobytes("RssFile")
total = sum(int(windows.rows_at(3, step, 64).sum()) for step in range(len(windows) // 64))
print(kilobytes("RssAnon") - before[0], kilobytes("RssFile") - before[1], total)
"""


def test_reading_a_whole_store_copies_none_of_it(tmp_path):
    draw = np.random.Generator(np.random.PCG64(7))
    documents = ((f"d{i}", 1, draw.integers(7, 4096, TOKENS // 100 - 1)) for i in range(100))
    write_tokens(tmp_path / "store", documents, 4096, "0f", TOKENS // 3)
    command = [sys.executable, "-c", READ, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    anonymous, mapped, total = map(int, done.stdout.split())
    assert total > TOKENS * 1000
    assert mapped > 30_000, "the store was not read through its mapping"
    assert anonymous < 4_000
