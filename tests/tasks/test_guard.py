"""The guard notices every kind of edit while it watches, and nothing else."""

import importlib
import os
import sys
import time
from types import SimpleNamespace

import pytest

from tasks.runtime.provenance_guard import Edited, Guard, listed_sources

PARAMS = "a: {x: 1, y: 5}\nb: {z: 7}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with parameters, inputs and a loaded source file of the project's packages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/sub/x.bin").write_bytes(b"13")
    (tmp_path / "file.bin").write_bytes(b"99")
    (tmp_path / "plm_core_of_test.py").write_text("VALUE = 1\n")
    old = time.time() - 1e6
    os.utime(tmp_path / "plm_core_of_test.py", (old, old))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "plm_core.of_test", importlib.import_module("plm_core_of_test"))
    yield tmp_path
    sys.modules.pop("plm_core_of_test", None)


@pytest.fixture
def guard(place):
    return Guard(["a"], [place / "data", place / "file.bin"])


def rewrite(path, text):
    path.write_text(text)


EDITS = {
    "a parameter": (lambda p: rewrite(p / "params.yaml", PARAMS.replace("5", "6")), r"params\.yaml \(a\)"),
    "a section that vanishes": (lambda p: rewrite(p / "params.yaml", "b: 1\n"), r"params\.yaml \(a\): changed"),
    "parameters that vanish": (lambda p: (p / "params.yaml").unlink(), r"params\.yaml \(a\): changed"),
    "a source file": (lambda p: rewrite(p / "plm_core_of_test.py", "VALUE = 2\n"), r"^plm_core_of_test\.py: changed"),
    "a source file that vanishes": (lambda p: (p / "plm_core_of_test.py").unlink(), r"^plm_core_of_test\.py: changed"),
    "an input": (lambda p: rewrite(p / "file.bin", "98"), r"file\.bin: changed"),
    "an input that vanishes": (lambda p: (p / "file.bin").unlink(), r"file\.bin: changed"),
    "a file of an input folder": (lambda p: rewrite(p / "data/sub/x.bin", "14"), r"data: changed"),
    "a new file in an input folder": (lambda p: rewrite(p / "data/y.bin", ""), r"data: changed"),
}


@pytest.mark.parametrize("what", EDITS)
def test_guard_names_an_edit(place, guard, what):
    guard.check()
    edit, message = EDITS[what]
    edit(place)
    with pytest.raises(Edited, match=message):
        guard.check()


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: rewrite(p / "params.yaml", "# a comment\n" + PARAMS.replace("7", "8")),
        lambda p: rewrite(p / "plm_core_of_test.py", "VALUE = 1\n"),
        lambda p: rewrite(p / "other.py", "VALUE = 3\n"),
    ],
    ids=["another section", "a source file saved unchanged", "a file that nobody loaded"],
)
def test_guard_ignores_changes_without_effect(place, guard, edit):
    edit(place)
    guard.check()


def test_parameters_that_an_editor_is_saving_are_looked_at_again(place, guard, monkeypatch):
    rewrite(place / "params.yaml", "")
    monkeypatch.setattr("time.sleep", lambda seconds: rewrite(place / "params.yaml", PARAMS))
    guard.check()


def test_guard_refuses_sources_newer_than_the_process(place):
    os.utime(place / "plm_core_of_test.py")
    with pytest.raises(Edited, match=r"plm_core_of_test\.py"):
        Guard(["a"], [])


def test_guard_allows_sources_dated_in_the_future(place):
    ahead = time.time() + 7200
    os.utime(place / "plm_core_of_test.py", (ahead, ahead))
    guard = Guard(["a"], [])
    guard.check()
    rewrite(place / "plm_core_of_test.py", "VALUE = 2\n")
    os.utime(place / "plm_core_of_test.py", (ahead, ahead))
    with pytest.raises(Edited, match=r"plm_core_of_test\.py"):
        guard.check()


GRAPH = """stages:
  one:
    cmd: python -m tasks.stages.one
    deps: [
      data,
      plm_core/room, tasks/stages/one.py
    ]
  two:
    cmd: python -m tasks.stages.two
    deps: [data]
  three:
    cmd: python -m tasks.stages.three ${key}
    deps: [
      tasks/stages/three.py
    ]
"""


@pytest.mark.parametrize(
    ("module", "listed"),
    [
        ("tasks.stages.one", ["plm_core/room/a.j2", "plm_core/room/b.py", "tasks/stages/one.py"]),
        ("tasks.stages.two", []),
        ("tasks.stages.three", ["tasks/stages/three.py"]),
        ("tasks.stages.thr", []),
        ("pytest.__main__", []),
    ],
)
def test_guard_code_includes_dvc_deps_not_yet_loaded(place, monkeypatch, module, listed):
    for name in (
        "plm_core/room/a.j2",
        "plm_core/room/b.py",
        "plm_core/room/c.txt",
        "tasks/stages/one.py",
        "tasks/stages/three.py",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        rewrite(place / name, name)
        os.utime(place / name, (time.time() - 1e6,) * 2)
    rewrite(place / "dvc.yaml", GRAPH)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=module))
    assert [path.as_posix() for path in listed_sources()] == listed
    guard = Guard([], [])
    rewrite(place / "tasks/stages/three.py", "edited")
    assert (Guard([], []).code != guard.code) == ("tasks/stages/three.py" in listed)
    guard.check()  # what is running has not loaded it


def test_the_digest_of_the_code_is_that_of_its_content(place, guard):
    assert Guard([], []).code == guard.code
    (place / "plm_core_of_test.py").write_text("VALUE = 2\n")
    old = time.time() - 1e6
    os.utime(place / "plm_core_of_test.py", (old, old))
    assert Guard([], []).code != guard.code
