"""What a stage's pool leaves on the disk: what is done where the stage was killed, and never half of it."""

import shutil
from types import SimpleNamespace

import pytest

from plm_core.config import UserError
from tasks.runtime import worker_pool

STAGE = SimpleNamespace(name="clean", inputs={}, guard=SimpleNamespace(code="1"))


def write(number, folder):
    (folder / "number").write_text(str(number))


def test_killed_pool_cleanup_leaves_no_false_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def killed(folder, ignore_errors):
        for file in folder.rglob("number"):
            file.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt), worker_pool.pool(STAGE) as pool:
            pool.map("job", write, [1, 2])
    with worker_pool.pool(STAGE) as pool:
        assert [(folder / "number").read_text() for folder in pool.map("job", write, [1, 2])] == ["1", "2"]
    assert "resuming" not in capsys.readouterr().out
    assert not list((tmp_path / "artifacts/parts").iterdir())


@pytest.mark.parametrize(("error", "kept"), [(OSError, True), (UserError, False)])
def test_pool_keeps_results_when_a_retry_may_succeed(tmp_path, monkeypatch, error, kept):
    monkeypatch.chdir(tmp_path)

    def fail():
        with worker_pool.pool(STAGE) as pool:
            pool.map("job", write, [1, 2])
            raise error("x")

    with pytest.raises(error, match="x"):
        fail()
    assert len(list((tmp_path / "artifacts/parts").glob("clean/*/job/00000?/number"))) == 2 * kept
