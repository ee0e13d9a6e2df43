"""The parameters are checked before the first stage of a graph that has something to do."""

import pytest

from flows import pipeline, prefects, server
from flows.outcome import UserError

ONE = "stages:\n  one:\n    cmd: echo ran > one.txt\n    outs: [one.txt]\n"
CHECK = "import sys\nprint('error: a.b: 1\\nerror: c: 2', file=sys.stderr)\nsys.exit(2)\n"


def test_all_problems_are_told_before_any_stage_runs(toy, monkeypatch):
    began = []
    monkeypatch.setattr(server, "configured_url", lambda: "http://127.0.0.1:9")
    monkeypatch.setattr(prefects, "require", lambda *_: None)
    monkeypatch.setattr(pipeline, "_run_flow", lambda *given: began.append(given))
    settings = "tracking: {uri: 'sqlite:///mlflow.db', experiment: plm}\npromotion: {registered_model: plm}\n"
    root = toy(ONE, params_yaml=settings)
    pipeline.run(root)
    assert len(began) == 1  # a graph of other commands has no check
    (root / "tasks").mkdir()
    (root / "tasks/__init__.py").touch()
    (root / "tasks/check.py").write_text(CHECK)
    with pytest.raises(UserError, match=r"^a\.b: 1\nerror: c: 2$"):
        pipeline.run(root)
    (root / "tasks/check.py").write_text("")
    pipeline.run(root)
    assert len(began) == 2
