"""The source files of a stage: found through imports of every kind, listed briefly, written after the mark."""

import subprocess
import sys

import pytest

from flows.sources import sources, written
from plm_core.shared.paths import SOURCES

FILES = {
    "tasks/one.py": "from plm_core import a\nimport numpy\n",
    "tasks/two.py": "def f():\n    from plm_core.room import c\n",
    "plm_core/__init__.py": '"""Nothing."""',
    "plm_core/a.py": 'class A:\n    part = "plm_core.far.named:x"\n    other = Call(scorer="plm_core.far.other:y")\n',
    "plm_core/reads.py": "import plm_core.a\nprint(plm_core.a.A.part)\n",
    "plm_core/resolves.py": "from pkgutil import resolve_name\nimport plm_core.a\nresolve_name(plm_core.a.A.part)\n",
    "plm_core/far/__init__.py": "",
    "plm_core/far/named.py": "x = 1\n",
    "plm_core/far/other.py": "y = 1\n",
    "plm_core/room/__init__.py": '"""Says nothing."""',
    "plm_core/room/b.py": "b = 1\n",
    "plm_core/room/c.py": "from plm_core.room import b, d\n",
    "plm_core/room/d.py": "d = 1\n",
    "plm_core/room/e.py": "e = 1\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_in_functions_count_and_what_is_not_the_projects_does_not(root):
    assert sources(root, "one") == ["tasks/one.py", "plm_core/a.py"]
    assert sources(root, "two") == ["tasks/two.py", "plm_core/room"]


def test_what_is_named_counts_for_who_resolves_it_only(root):
    (root / "tasks/three.py").write_text("import plm_core.reads\n")
    (root / "tasks/four.py").write_text("import plm_core.resolves\n")
    assert sources(root, "three") == ["tasks/three.py", "plm_core/a.py", "plm_core/reads.py"]
    assert sources(root, "four") == ["tasks/four.py", "plm_core/a.py", "plm_core/far/named.py", "plm_core/resolves.py"]


def test_templates_count_with_those_that_they_include(root):
    (root / "tasks/room").mkdir()
    (root / "tasks/five.py").write_text('import plm_core.a\nrender("tasks/room/page.j2")\n')
    (root / "tasks/room/page.j2").write_text('{% include "tasks/room/part.j2" %}\nimport plm_core.room\n')
    (root / "tasks/room/part.j2").write_text('{% extends "tasks/room/page.j2" %}')
    for other in ("other", "another"):
        (root / f"tasks/room/{other}.j2").write_text("")
    assert sources(root, "five") == [
        *("tasks/five.py", "tasks/room/page.j2", "tasks/room/part.j2"),
        "plm_core/a.py",
    ]
    (root / "tasks/room/another.j2").unlink()
    assert sources(root, "five")[1:3] == ["tasks/room/page.j2", "tasks/room/part.j2"]
    (root / "tasks/room/other.j2").unlink()
    assert sources(root, "five") == ["tasks/five.py", "tasks/room", "plm_core/a.py"]


def test_a_folder_stands_for_most_of_its_files(root):
    assert sources(root, "two")[1] == "plm_core/room"
    (root / "plm_core/room/f.py").write_text("f = 1\n")
    assert sources(root, "two")[1:] == ["plm_core/room/b.py", "plm_core/room/c.py", "plm_core/room/d.py"]


def test_the_lists_are_written_behind_the_mark_and_no_other_line_is_touched(root):
    text = f"""stages:
  # kept
  one:
    cmd: python -m tasks.one ${{key}}
    deps: [
      "${{item.input}}",
      {SOURCES}
      nonsense
    ]
    outs: [x]
  two:
    do:
      cmd: python -m tasks.two
      deps: [
        {SOURCES}
      ]
"""
    now = written(root, text)
    assert now == text.replace("      nonsense\n", "      tasks/one.py, plm_core/a.py\n").replace(
        f"        {SOURCES}\n      ]", f"        {SOURCES}\n        tasks/two.py, plm_core/room\n      ]"
    )
    assert written(root, now) == now
    (root / "dvc.yaml").write_text(text)
    command = [sys.executable, "-m", "flows.sources"]
    check = subprocess.run([*command, "--check"], cwd=root, capture_output=True, text=True)
    assert (check.returncode, (root / "dvc.yaml").read_text()) == (1, text)
    assert "run `make graph`" in check.stderr
    subprocess.run(command, cwd=root, check=True)
    assert (root / "dvc.yaml").read_text() == now
    subprocess.run([*command, "--check"], cwd=root, check=True)
