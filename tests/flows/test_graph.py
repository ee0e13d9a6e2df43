"""The graph as DVC reads it: order, meta, reasons."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows import graph

CHAIN = """
vars: [params.yaml]
stages:
  last:
    cmd: cat train-a.txt train-b.txt > last.txt
    deps: [train-a.txt, train-b.txt]
    outs: [last.txt]
  train:
    foreach: ${models}
    do:
      cmd: cat first.txt > train-${key}.txt
      deps: [first.txt]
      params: ["models.${key}"]
      outs: ["train-${key}.txt"]
      meta:
        gpu: all
        cores: all
        retries: 5
        register: {checkpoint: "train-${key}.txt", evidence: last.txt}
  first:
    cmd: cat code.py > first.txt
    deps: [code.py]
    outs: [first.txt]
"""
PARAMS = "models:\n  a: {lr: 1}\n  b: {lr: 2}\n"


def repro(root: Path) -> None:
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=root, check=True)


@pytest.fixture
def chain(toy) -> Path:
    return toy(CHAIN, params_yaml=PARAMS, code_py="pass\n")


def test_stages_come_after_what_they_need_with_foreach_resolved(chain):
    stages = {stage.name: stage for stage in graph.load(chain)}
    assert list(stages) == ["first", "train@a", "train@b", "last"]
    assert stages["first"] == graph.Stage("first", outs=("first.txt",))
    assert stages["last"].upstream == ("train@a", "train@b")
    assert stages["train@a"] == graph.Stage(
        "train@a",
        upstream=("first",),
        gpu="all",
        cores="all",
        retries=5,
        register={"checkpoint": "train-a.txt", "evidence": "last.txt"},
        outs=("train-a.txt",),
    )


def test_names_do_not_depend_on_the_current_folder(chain, tmp_path, monkeypatch):
    names = [stage.name for stage in graph.load(chain)]
    for folder in (chain, tmp_path, chain / ".dvc"):
        monkeypatch.chdir(folder)
        assert [stage.name for stage in graph.load(chain)] == names
        assert graph.stale(chain, "first") == ["never run"]


def test_data_added_by_hand_is_no_stage(toy):
    root = toy("stages:\n  s: {cmd: cp d.txt o.txt, deps: [d.txt], outs: [o.txt]}\n", d_txt="x")
    subprocess.run([sys.executable, "-m", "dvc", "add", "-q", "d.txt"], cwd=root, check=True)
    assert graph.load(root) == [graph.Stage("s", outs=("o.txt",))]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (
            "{gpus: 1}",
            "dvc.yaml: stages.s.meta.gpus: 1; expected one of the keys gpu, cores, retries, register",
        ),
        ("{gpu: 1}", "dvc.yaml: stages.s.meta.gpu: 1; expected true, false or `all`"),
        ("{cores: 0}", "dvc.yaml: stages.s.meta.cores: 0; expected a number of cores"),
        ("{cores: true}", "dvc.yaml: stages.s.meta.cores: True; expected a number of cores"),
        ("{cores: many}", "dvc.yaml: stages.s.meta.cores: 'many'; expected a number of cores"),
        ("{retries: -1}", "dvc.yaml: stages.s.meta.retries: -1; expected a number of times"),
        ("{register: {checkpoint: a}}", "stages.s.meta.register: .*; expected a mapping of checkpoint and"),
        ("[gpu]", "dvc.yaml: stages.s.meta: .*; expected a mapping"),
    ],
)
def test_wrong_meta_is_refused_by_its_dotted_name(toy, meta, message):
    root = toy(f"stages:\n  s: {{cmd: touch o.txt, outs: [o.txt], meta: {meta}}}\n")
    with pytest.raises(graph.GraphError, match=message):
        graph.load(root)


def test_a_broken_dvc_yaml_and_a_folder_that_is_no_repository_are_named(toy, tmp_path):
    with pytest.raises(graph.GraphError, match=r"dvc\.yaml"):
        graph.load(toy("stages: [\n"))
    with pytest.raises(graph.GraphError, match="not inside of a DVC repository"):
        graph.load(tmp_path)


def test_reasons_name_what_changed_and_only_what_it_reaches(chain):
    assert graph.whole_status(chain)["last"] == ["never run", "upstream not up to date: train@a, train@b"]
    repro(chain)
    assert not any(graph.whole_status(chain).values())

    (chain / "params.yaml").write_text(PARAMS.replace("lr: 2", "lr: 3"))
    assert graph.stale(chain, "train@b") == ["changed params: models.b"]
    assert graph.stale(chain, "last") == []
    status = graph.whole_status(chain)
    assert status["train@a"] == []
    assert status["last"] == ["upstream not up to date: train@b"]

    (chain / "code.py").write_text("2\n")
    (chain / "last.txt").unlink()
    assert graph.stale(chain, "first") == ["changed deps: code.py"]
    assert graph.stale(chain, "last") == ["missing outs: last.txt"]

    text = (chain / "dvc.yaml").read_text()
    (chain / "dvc.yaml").write_text(text.replace("cat code.py", "cat -u code.py"))
    assert "changed command" in graph.stale(chain, "first")


def test_a_result_whose_code_changed_meanwhile_is_taken_back_from_the_run_cache_too(chain):
    before = graph.inputs(chain, "first")
    (chain / "code.py").write_text("edited\n")
    repro(chain)
    assert not any(graph.whole_status(chain).values())

    assert graph.retract_if_changed(chain, "first", before) == ["code.py"]
    assert graph.stale(chain, "first") == ["never run"]
    assert graph.stale(chain, "train@a") == []
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--single-item", "first"],
        cwd=chain,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "> cat code.py" in done.stdout
    assert "is cached" not in done.stdout


def test_an_unchanged_result_stays(chain):
    before = graph.inputs(chain, "first")
    repro(chain)
    assert graph.retract_if_changed(chain, "first", before) == []
    assert graph.stale(chain, "first") == []
