"""How long the rest of a long work takes, as it is said in a log."""

from tasks.runtime import stage
from tasks.runtime.stage import Progress


def test_progress_eta_ignores_work_before_a_resume(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(stage, "monotonic", lambda: now)
    meter = Progress("pretrain", 1500)
    now += 30  # reading the snapshot
    for step in range(20, 1061, 20):
        meter.resume(step)
    now += 90
    meter.update(1080, "loss 3.810")
    now += 90
    meter.update(1100)
    assert capsys.readouterr().out.splitlines() == [
        "pretrain: 1080/1500 (72%), 1890 s left  loss 3.810",
        "pretrain: 1100/1500 (73%), 1800 s left  ",
    ]


def test_a_line_comes_every_few_seconds_and_at_the_end(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(stage, "monotonic", lambda: now)
    meter = Progress("pairs", 30)
    for done in range(1, 31):
        now += 1
        meter.update(done)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [f"{done}/30" for done in (5, 10, 15, 20, 25, 30)]
    assert "5/30 (17%), 25 s left" in lines[0]


def test_progress_eta_skips_the_first_group(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(stage, "monotonic", lambda: now)

    def groups():
        nonlocal now
        for first in range(0, 30, 10):
            now += 10
            yield from range(first, first + 10)

    meter = Progress("pairs", 30)
    assert list(meter.counted(groups())) == list(range(30))
    assert capsys.readouterr().out.splitlines() == [
        "pairs: 11/30 (37%), 19 s left  ",
        "pairs: 21/30 (70%), 9 s left  ",
        "pairs: 30/30 (100%), 0 s left  ",
    ]
