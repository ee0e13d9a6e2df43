"""The journal: what a cut line, a full disk, a crash of the machine or a second process can do to it."""

import json
import os
import random
import re
import resource
import socket
import subprocess
import sys

import pytest
from mlflows import client_of, journals, points_of, runs_of, stage

from tasks.tracking import journal
from tasks.tracking.journal import SENDER, WRITER, Journal, Sent, parsed, unfinished
from tasks.tracking.service import Service

OPEN = {"kind": "open", "format": journal.FORMAT, "name": "x", "training": "digest", "params": {}, "inputs": {}}
OPEN |= {"tags": {}, "start_time": 7}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def points(*steps):
    return {"kind": "metrics", "points": [["loss", 0.5, 1000 + step, step] for step in steps]}


def written(*messages):
    made = Journal.new("pretrain-gpt")
    for message in messages:
        made.append(message)
    return made


def test_lines_come_back_with_the_offset_after_each():
    made = written(OPEN, points(1), points(2))
    (first, after), *rest = made.messages()
    assert first == OPEN
    assert [message for message, _ in made.messages(after)] == [points(1), points(2)]
    assert rest[-1][1] == made.path.stat().st_size
    assert list(made.messages(rest[-1][1])) == []


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_line_cut_short_is_skipped_and_the_next_one_is_whole(cut):
    made = written(OPEN, points(1), points(2))
    os.truncate(made.path, made.path.stat().st_size - cut)
    made.close()
    assert [message for message, _ in Journal.existing(made.path).messages()] == [OPEN, points(1)]
    again = unfinished("digest")
    again.append(points(3))
    assert [message for message, _ in again.messages()] == [OPEN, points(1), *[points(2)] * (cut == 1), points(3)]
    assert again.points() == {("loss", 1), ("loss", 3)} | ({("loss", 2)} if cut == 1 else set())


def test_a_full_disk_refuses_a_line_and_harms_no_other():
    made = written(OPEN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (made.path.stat().st_size + 9, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=r"No space left|too large"):
                made.append(points(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    made.append(points(2))
    assert [message for message, _ in made.messages()] == [OPEN, points(2)]


def test_a_journal_is_bounded(monkeypatch):
    monkeypatch.setattr(journal, "LIMIT_BYTES", 300)
    made = written(OPEN)
    made.append(points(*range(5)))
    with pytest.raises(OSError, match="too large"):
        made.append(points(*range(5)))
    assert [message for message, _ in made.messages()] == [OPEN, points(*range(5))]


def test_what_was_acknowledged_of_more_than_there_is_counts_for_nothing():
    made = written(OPEN, points(1))
    made.acknowledge(Sent("run", made.path.stat().st_size))
    assert made.sent() == Sent("run", made.path.stat().st_size)
    os.truncate(made.path, 20)  # the end of a file that was not flushed is lost with the machine
    assert made.sent() == Sent("run", 0)
    made.path.with_suffix(".sent").write_text('{"run": "r')
    assert made.sent() == Sent()


def test_a_journal_that_was_sent_is_gone_though_a_copy_of_the_checkout_holds_a_link_to_it():
    made = written(OPEN)
    os.link(made.path, "copy.jsonl")
    assert made.on_disk
    made.discard()
    assert not made.on_disk
    made.path.write_text("")  # another file of that name
    assert not made.on_disk


def test_the_end_that_counts_is_the_last_one():
    made = written(OPEN, {"kind": "end", "status": "KILLED", "time": 7})
    assert made.ending() == ("KILLED", 7)
    made.append(OPEN)
    assert made.ending()[0] is None
    assert made.ending([{"kind": "end", "status": "FINISHED", "time": 9}]) == ("FINISHED", 9)


def test_a_training_goes_on_in_its_own_journal_unless_it_finished():
    other = written(OPEN | {"training": "other"})
    made = written(OPEN, points(1))
    made.close()
    assert unfinished("digest").path == made.path
    made = Journal.existing(made.path)
    made.append({"kind": "end", "status": "FINISHED", "time": 7})
    assert unfinished("digest") is None
    assert unfinished("other").path == other.path


HOLD = """
import os, sys, time
from pathlib import Path
from tasks.tracking.journal import WRITER, Journal
made = Journal.existing(Path(sys.argv[1]))
print(made.lock(WRITER), flush=True)
if sys.argv[2:] and os.fork() == 0:
    os.close(1)
    time.sleep(60)
sys.stdin.read()
"""


@pytest.mark.parametrize("forks", [[], ["forks"]])
def test_a_journal_is_written_as_long_as_its_process_lives_whatever_it_has_forked(forks):
    made = written(OPEN)
    made.unlock(WRITER)
    command = [sys.executable, "-c", HOLD, str(made.path), *forks]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert holder.stdout.readline() == "True\n"
    assert made.written()
    assert unfinished("digest") is None
    assert made.lock(SENDER), "to send it is another right"
    holder.kill()
    holder.wait()
    assert not made.written()
    assert unfinished("digest").path == made.path


LOOK = """
import contextlib
from pathlib import Path
from tasks.tracking.journal import Journal
from tasks.tracking.service import Service

print("ready", flush=True)
while True:
    Service("x").holder()
    for path in Path("artifacts/journals").glob("*.jsonl"):
        with contextlib.suppress(OSError):
            journal = Journal.existing(path)
            if not journal.written() and not journal.size:
                journal.discard()
            journal.close()
"""


def test_who_looks_for_journals_takes_none_from_its_writer_and_no_lock_from_anybody():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOOK]
    looking = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
    try:
        assert [each.stdout.readline() for each in looking] == ["ready\n"] * 2
        kept = locked = taken = 0
        for _ in range(3000):
            made = written({})
            kept += made.on_disk
            made.unlock(WRITER)
            locked += made.lock(WRITER)
            service = Service("x")
            taken += service.take()
            service.leave()
            made.discard()
            made.close()
        assert (kept, locked, taken) == (3000, 3000, 3000)
    finally:
        for each in looking:
            each.kill()
            each.wait()


BEAT = """
from tasks.tracking.service import Service

service = Service("x")
service.take()
service.beat("0")
print("ready", flush=True)
for number in range(10**9):
    service.beat(str(number) * (number % 50))
"""


def test_what_a_recorder_says_is_read_whole_at_any_moment():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", BEAT], stdout=subprocess.PIPE, env=environment, text=True) as beating:
        assert beating.stdout.readline() == "ready\n"
        said = [Service("x").holder() for _ in range(5000)]
        beating.kill()
    assert all("says" in each for each in said)


HUNG = """
import os
from tasks.tracking import service

service.HUNG_S = 0.0
os.kill = None  # a call is an error
service.ensure(service.Service("x"))
"""


def test_a_recorder_of_another_machine_is_left_alone_however_old_its_word_is(monkeypatch):
    """Its number means another process here, and its clock another time."""
    service = Service("x")
    service.take()
    service.beat(None)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HUNG]
    assert subprocess.run(command, env=environment, stderr=subprocess.DEVNULL).returncode == 1
    monkeypatch.setattr("tasks.tracking.service.place", lambda: "elsewhere")
    service.beat(None)
    assert subprocess.run(command, env=environment).returncode == 0


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_any_damaged_bit_costs_no_more_than_its_line():
    made = written(
        OPEN, points(1), {"kind": "tags", "tags": {"a": "b"}}, {"kind": "end", "status": "FINISHED", "time": 9}
    )
    whole = made.path.read_bytes()
    draw = random.Random(7)
    for _ in range(500):
        made.path.write_bytes(flipped(whole, draw.randrange(len(whole)), draw.randrange(8)))
        kinds = [message["kind"] for message, _ in made.messages()]
        assert 3 <= len(kinds) <= 4
        made.ending(), made.points(), made.opening()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[" * 100_000, "7", "{}", '{"kind": []}', '{"kind": "end"}', '{"kind": "end", "status": 1, "time": 2}']
    + ['{"kind": "end", "status": "FINISHEE", "time": 2}']
    + [json.dumps({"kind": "metrics", "points": [point]}) for point in (7, [], ["a", 1.0, 1], ["a", "b", 1, 1])],
)
def test_what_is_no_message_is_none(line):
    assert parsed(line.encode()) is None


SEND = """
from tasks.tracking import recorder
recorder.GRACE_S = 0.1
recorder.Recorder().serve()
"""


@pytest.mark.slow
def test_no_damaged_journal_keeps_another_one_from_mlflow(folder):
    """A bit is flipped at the beginning of each line, and here and there; the run of one journal cannot be made."""
    end = {"kind": "end", "status": "FINISHED", "time": 9}
    good = written(OPEN | {"training": None}, points(1), {"kind": "tags", "tags": {"a": "b"}}, end)
    whole = good.path.read_bytes()
    good.close()
    draw = random.Random(7)
    places = [line.start() for line in re.finditer(rb"{.kind", whole)] + [draw.randrange(len(whole)) for _ in range(8)]
    for number, at in enumerate(places):
        (folder / f"artifacts/journals/1-{number}.jsonl").write_bytes(flipped(whole, at, draw.randrange(8)))
    bad = written(OPEN | {"training": None, "parent": 7}, end)
    bad.path.rename(folder / "artifacts/journals/0.jsonl")
    bad.close()
    done = stage(folder, SEND)
    assert done.returncode == 0
    assert [path.name for path in journals(folder)] == ["0.jsonl"]
    assert "(artifacts/journals/0.jsonl); artifacts/journals keeps what has not been sent" in done.stderr
    client = client_of(folder)
    runs = {run.data.tags["plm.journal"]: run for run in runs_of(client)}
    assert runs.keys() == {good.key, *(f"1-{number}" for number in range(len(places)))}
    assert (runs[good.key].info.status, points_of(client, runs[good.key])) == ("FINISHED", [(1, 0.5)])
    assert runs["1-0"].info.run_name == "1-0", "its name is lost, its points are not"
    assert points_of(client, runs["1-0"]) == [(1, 0.5)]


@pytest.mark.slow
def test_a_disk_that_does_not_take_what_mlflow_has_holds_no_recorder_up(folder):
    interrupted = written(OPEN, points(1), {"kind": "end", "status": "KILLED", "time": 9})
    interrupted.path.with_suffix(".sent").mkdir()
    interrupted.close()
    done = stage(folder, SEND)
    assert (done.returncode, done.stderr) == (0, "")
    assert [run.info.status for run in runs_of(client_of(folder))] == ["KILLED"]
    unfinished("digest").append(OPEN)  # the training run resumes
    again = stage(folder, SEND)
    assert (again.returncode, again.stderr) == (0, "")
    assert [run.info.status for run in runs_of(client_of(folder))] == ["RUNNING"]


def test_only_runs_of_this_machine_have_what_is_seen_of_it(tmp_path):
    from tasks.tracking.recorder import Recorder

    here, there = (written(OPEN | {"tags": {"plm.host": host}}) for host in (socket.gethostname(), "gpu-node-7"))
    (tmp_path / "params.yaml").write_text("tracking: {uri: sqlite:///mlflow.db, experiment: plm}")
    Recorder()._sample([here, there])
    (_, _), (sampled, _) = here.messages()
    assert "system/cpu_utilization_percentage" in {name for name, *_ in sampled["points"]}
    assert len(list(there.messages())) == 1
