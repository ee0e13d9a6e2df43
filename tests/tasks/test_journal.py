"""The journal: what a cut line, a full disk, a crash of the machine or a second process can do to it."""

import os
import resource

import pytest

from tasks.seam import journal
from tasks.seam.journal import Journal, Sent, unfinished, waiting

OPEN = {"kind": "open", "name": "x", "training": "digest"}


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


def test_the_end_that_counts_is_the_last_one():
    made = written(OPEN, {"kind": "end", "status": "KILLED", "time": 7})
    assert made.ending() == ("KILLED", 7)
    made.append({"kind": "resume", "tags": {}})
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


def test_what_waits_is_what_nobody_holds_and_mlflow_has_not(monkeypatch):
    held, left, sent = (written(OPEN | {"name": name}) for name in ("held", "left", "sent"))
    left.close()
    sent.acknowledge(Sent("run", 10, closed=True))
    sent.close()
    assert [found.path for found in waiting()] == [left.path]
    assert list(waiting(left.path)) == []
    again = Journal.existing(left.path)
    assert again.lock(wait=False), "the lock ends with the turn"
    assert list(waiting()) == []
    again.close()
    monkeypatch.setattr(journal, "KEPT_S", -1.0)
    assert [found.path for found in waiting()] == [left.path]
    assert not sent.path.exists()
    assert held.path.exists()
