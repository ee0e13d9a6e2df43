"""The journal of a run: what a cut line, a full disk, a fork or a process that looks at it can do to it."""

import os
import resource
import subprocess
import sys

import pytest

from plm_core.shared.files import is_locked
from tasks.tracking.run_journal import Journal, end_status, messages, parse_message

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def points(*steps):
    return {"kind": "metrics", "points": [["loss", 0.5, 1000 + step, step] for step in steps]}


@pytest.fixture
def made(tmp_path):
    journal = Journal.new(tmp_path / "journals", "pretrain-gpt")
    yield journal
    journal.close()


def read(journal):
    return [message for message, _ in messages(journal.path)]


@pytest.mark.parametrize("cut", [1, 7])
def test_journal_skips_an_unfinished_last_line(made, cut):
    made.append(points(1))
    _, after = next(messages(made.path))
    made.append(points(2))
    assert [message for message, _ in messages(made.path, after)] == [points(2)]
    os.truncate(made.path, made.path.stat().st_size - cut)
    assert read(made) == [points(1)]
    made.close()
    again = Journal.existing(made.path)
    again.append(points(3))
    assert read(again) == [points(1), points(3)]


def test_journal_survives_a_full_disk(made):
    made.append(points(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (made.path.stat().st_size + 9, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                made.append(points(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    made.append(points(3))
    assert read(made) == [points(1), points(3)]


@pytest.mark.parametrize("line", ["", "{", "[" * 100_000, "7", "{}", '{"kind": []}', "\udcff"])
def test_journal_with_unreadable_line_is_damaged(made, line):
    assert parse_message(line) == {"kind": "damaged"}


def test_journal_takes_its_last_end(made):
    made.append({"kind": "open"})
    made.append({"kind": "end", "status": "KILLED", "time": 7})
    made.append({"kind": "published"})
    assert end_status(made.path) == ("KILLED", True)
    made.append({"kind": "open"})
    assert end_status(made.path) == (None, False)


HOLD = """
import os, sys, time
from pathlib import Path
from tasks.tracking.run_journal import Journal
made = Journal.existing(Path(sys.argv[1]))
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
print(made is not None, flush=True)
sys.stdin.read()
"""


def test_journal_is_open_while_its_process_lives_despite_forks(made):
    assert is_locked(made.path)
    made.close()
    command = [sys.executable, "-c", HOLD, str(made.path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True)
    assert holder.stdout.readline() == "True\n"
    assert is_locked(made.path)
    assert Journal.existing(made.path) is None
    holder.kill()
    holder.wait()
    assert not is_locked(made.path)
    assert Journal.existing(made.path).path == made.path


LOOK = """
import sys
from pathlib import Path
from plm_core.shared.files import is_locked
print("ready", flush=True)
while True:
    for path in Path(sys.argv[1]).glob("*.jsonl"):
        if path.exists() and not is_locked(path) and path.stat().st_size == 0:
            path.unlink(missing_ok=True)
"""


def test_listing_journals_leaves_those_being_written(tmp_path):
    command = [sys.executable, "-c", LOOK, str(tmp_path)]
    looking = [subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in looking] == ["ready\n"] * 2
        for _ in range(1000):
            made = Journal.new(tmp_path, "x")
            assert made.path.exists()
            made.append({})
            made.close()
            again = Journal.existing(made.path)
            assert again, "whoever looks lets go of it"
            again.path.unlink()
            again.close()
    finally:
        for process in looking:
            process.kill()
            process.wait()
