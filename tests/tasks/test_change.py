"""Parameters changed in place by a process."""

import subprocess
import sys


def change(root, values):
    command = [sys.executable, "-m", "tasks.commands.change", values]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_parameters_are_changed_and_the_rest_stays(tmp_path):
    (tmp_path / "params.yaml").write_text("a: # first\n  b: 1 # second\n  c: {d: x}\n")
    assert change(tmp_path, '{"a.b": 0.00005, "a.c.d": "y"}').returncode == 0
    assert (tmp_path / "params.yaml").read_text() == "a: # first\n  b: 5.0e-05 # second\n  c: {d: y}\n"


def test_change_keeps_the_spelling_of_equal_values(tmp_path):
    text = "a:\n  b: 1.0e-2\n  c: [1, 2] # two\n  d: true\n"
    (tmp_path / "params.yaml").write_text(text)
    assert change(tmp_path, '{"a.b": 0.01, "a.c": [1, 2], "a.d": true}').returncode == 0
    assert (tmp_path / "params.yaml").read_text() == text
