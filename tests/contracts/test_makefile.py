"""What `make` takes away."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
