"""What `make` takes away, and the tests for which there is no time."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_installs_into_venv_whatever_pip_settings(tmp_path):
    (tmp_path / "Makefile").write_text(f"include {ROOT / 'Makefile'}\nshow:\n\t@echo $$PIP_USER\n")
    env = os.environ | {"PIP_USER": "1"}
    command = ["make", "--no-print-directory", "show"]  # a `make` above this one would have it print the folder
    done = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
    assert done.stdout == "0\n"


def test_make_clean_leaves_what_nothing_makes_again(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = ["mlflow/mlflow.db", "journals/1.jsonl", "remote/files/md5/00/1", "imported/gpt2/config.json"]
    kept += ["sweeps/sweep/study.jsonl"]
    gone = ["models/gpt/config.json", "report/report.html", "snapshots/1/a", ".hidden"]
    for name in kept + gone:
        (tmp_path / "artifacts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "artifacts" / name).touch()
    (tmp_path / ".dvc/cache").mkdir(parents=True)
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    left = [path for path in tmp_path.glob("artifacts/**/*") if path.is_file()]
    assert {path.relative_to(tmp_path / "artifacts").as_posix() for path in left} == set(kept)
    assert list((tmp_path / ".dvc").iterdir()) == []
    shutil.rmtree(tmp_path / "artifacts")
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)


def test_test_time_limit_names_skipped_tests_and_rotates(tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(ROOT / "tests/conftest.py", tests)
    (tests / "test_it.py").write_text(
        "import time\n\n\ndef test_0():\n    time.monotonic = lambda: 1e18\n\n\ntest_1 = test_2 = test_0\n"
    )

    passed = []
    for day in (0, 1):
        # While the first test runs, years go by: it is run to its end.
        command = [sys.executable, "-m", "pytest", "-v", "--minutes", "60", "--rootdir", tmp_path, tests]
        settings = os.environ | {"PLM_TEST_DAY": str(day)}
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert "2 tests left out" in done.stdout
        assert len(re.findall(r"^tests/test_it.py::test_\d$", done.stdout, re.MULTILINE)) == 2
        passed += re.findall(r"::(test_\d) PASSED", done.stdout)
    assert len(set(passed)) == 2
