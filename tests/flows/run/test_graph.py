"""The graph as DVC reads it: order, meta, reasons."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import wait_for

from flows.run.graph import BusyError, EditedError, Graph, GraphError, Stage, merge_lock_entry

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
        minutes: 1.5
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
def chain(toy, monkeypatch) -> Path:
    root = toy(CHAIN, params_yaml=PARAMS, code_py="pass\n")
    monkeypatch.chdir(root)
    return root


def test_stages_come_after_what_they_need_with_foreach_resolved(chain):
    stages = {stage.name: stage for stage in Graph(chain).stages}
    assert list(stages) == ["first", "train@a", "train@b", "last"]
    assert stages["first"] == Stage("first", outs=("first.txt",))
    assert stages["last"].upstream == ("train@a", "train@b")
    assert stages["train@a"] == Stage(
        "train@a",
        upstream=("first",),
        gpu="all",
        cores="all",
        retries=5,
        minutes=1.5,
        register={"checkpoint": "train-a.txt", "evidence": "last.txt"},
        outs=("train-a.txt",),
    )


def test_names_do_not_depend_on_the_current_folder(chain, tmp_path, monkeypatch):
    names = [stage.name for stage in Graph(chain).stages]
    for folder in (chain, tmp_path, chain / ".dvc"):
        monkeypatch.chdir(folder)
        assert [stage.name for stage in Graph(chain).stages] == names
        assert Graph(chain).reasons("first") == ["never run"]


def test_data_added_by_hand_is_no_stage(toy):
    root = toy("stages:\n  s: {cmd: cp d.txt o.txt, deps: [d.txt], outs: [o.txt]}\n", d_txt="x")
    subprocess.run([sys.executable, "-m", "dvc", "add", "-q", "d.txt"], cwd=root, check=True)
    assert Graph(root).stages == (Stage("s", outs=("o.txt",)),)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (
            "{gpus: 1}",
            "stages.s.meta.gpus: 1; expected one of the keys gpu, cores, nodes, minutes, retries, optional, register",
        ),
        ("{gpu: 1}", "dvc.yaml: stages.s.meta.gpu: 1; expected true, false or `all`"),
        ("{cores: 0}", "dvc.yaml: stages.s.meta.cores: 0; expected a number of cores"),
        ("{optional: 1}", "dvc.yaml: stages.s.meta.optional: 1; expected true or false"),
        ("{minutes: .nan}", "dvc.yaml: stages.s.meta.minutes: nan; expected a number of minutes above 0"),
        ("{retries: -1}", "dvc.yaml: stages.s.meta.retries: -1; expected a number of times"),
        ("{register: {checkpoint: a}}", "stages.s.meta.register: .*; expected a mapping of checkpoint and"),
        ("[gpu]", "dvc.yaml: stages.s.meta: .*; expected a mapping"),
    ],
)
def test_wrong_meta_is_refused_by_its_dotted_name(toy, meta, message):
    root = toy(f"stages:\n  s: {{cmd: touch o.txt, outs: [o.txt], meta: {meta}}}\n")
    with pytest.raises(GraphError, match=message):
        Graph(root)


def test_a_broken_dvc_yaml_and_a_folder_that_is_no_repository_are_named(toy, tmp_path):
    with pytest.raises(GraphError, match=r"dvc\.yaml"):
        Graph(toy("stages: [\n"))
    with pytest.raises(GraphError, match="not inside of a DVC repository"):
        Graph(tmp_path)


def test_reasons_name_what_changed_and_only_what_it_reaches(chain):
    assert Graph(chain).status()["last"] == ["never run", "upstream not up to date: train@a, train@b"]
    repro(chain)
    assert not any(Graph(chain).status().values())

    (chain / "params.yaml").write_text(PARAMS.replace("lr: 2", "lr: 3"))
    assert Graph(chain).reasons("train@b") == ["changed params: models.b"]
    assert Graph(chain).reasons("last") == []
    status = Graph(chain).status()
    assert status["train@a"] == []
    assert status["last"] == ["upstream not up to date: train@b"]

    (chain / "code.py").write_text("2\n")
    (chain / "last.txt").unlink()
    assert Graph(chain).reasons("first") == ["changed deps: code.py"]
    assert Graph(chain).reasons("last") == ["missing outs: last.txt"]

    text = (chain / "dvc.yaml").read_text()
    (chain / "dvc.yaml").write_text(text.replace("cat code.py", "cat -u code.py"))
    assert "changed command" in Graph(chain).reasons("first")


def run(command, root):
    """Run a stage's command as the flow does; None is a result that was in DVC's run cache."""
    for line in command.lines if command else ():
        subprocess.run(line, cwd=root, env=os.environ | command.env, check=True)


def test_reproduced_stage_is_recorded_like_dvc(chain, toy, tmp_path):
    graph = Graph(chain)
    for stage in graph.stages:
        assert graph.reasons(stage.name) == ["never run"]
        with graph.reproducing(stage.name) as command:
            assert command.env["DVC_STAGE"] == stage.name
            run(command, chain)
        assert graph.reasons(stage.name) == []
    ours = (chain / "dvc.lock").read_text()
    assert not any(graph.status().values())
    (chain / "dvc.lock").unlink()
    shutil.rmtree(chain / ".dvc/cache")
    repro(chain)
    assert (chain / "dvc.lock").read_text() == ours


VALUES = st.recursive(
    st.text(max_size=99) | st.integers() | st.booleans() | st.none(), lambda v: st.lists(v, max_size=3)
)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b@c d", "e: f", "1", "#"]), st.dictionaries(st.text(max_size=5), VALUES)))
)
@example([("a", {"p": "x: |\nstages:\n  b:\n"}), ("b", {"p": "\n\n  c"}), ("a", {})])
def test_dvc_lock_entry_is_merged_like_dvc(written):
    from dvc.utils.serialize import dumps_yaml

    lock, whole = "schema: '2.0'\n", {}
    for name, values in written:
        entry = {"cmd": "x", "params": values}
        lock = merge_lock_entry(lock, dumps_yaml({"stages": {name: entry}}))
        whole[name] = entry
        assert lock == dumps_yaml({"schema": "2.0", "stages": whole})


def test_dvc_lock_merge_keeps_other_content():
    entry = "stages:\n  b:\n    cmd: y\n"
    assert merge_lock_entry("datasets:\n- name: d\n", entry) == f"datasets:\n- name: d\n{entry}"
    before = "# by hand\nschema: '2.0'\nstages:\n  a:\n    cmd: x # why\n"
    after = "datasets:\n- name: d\n  url: u\n"
    assert merge_lock_entry(f"{before}{after}", entry) == f"{before}  b:\n    cmd: y\n{after}"


def test_graph_serves_parallel_stages_and_sees_changes(chain):
    graph = Graph(chain)
    with graph.reproducing("first") as command:
        run(command, chain)
    with graph.reproducing("train@a") as a, graph.reproducing("train@b") as b:
        assert "train-a.txt" in (chain / ".dvc/tmp/rwlock").read_text()
        run(b, chain)
        run(a, chain)
    assert graph.reasons("train@a") == graph.reasons("train@b") == []
    assert not any(json.loads((chain / ".dvc/tmp/rwlock").read_text()).values())
    (chain / "params.yaml").write_text(PARAMS.replace("lr: 1", "lr: 5"))
    assert graph.reasons("train@a") == ["changed params: models.a"]
    (chain / "code.py").write_text("other\n")
    assert graph.reasons("first") == ["changed deps: code.py"]


def test_known_result_is_checked_out_unless_forced(chain):
    repro(chain)
    (chain / "dvc.lock").unlink()
    (chain / "first.txt").unlink()
    graph = Graph(chain)
    with graph.reproducing("first") as command:
        assert command is None
    assert (chain / "first.txt").read_text() == "pass\n"
    assert graph.reasons("first") == []
    with graph.reproducing("first", force=True) as command:
        run(command, chain)


def test_a_result_whose_code_changed_meanwhile_is_not_kept(chain):
    graph = Graph(chain)
    edited = pytest.raises(EditedError, match=r"code\.py changed while the stage ran")
    with edited, graph.reproducing("first"):
        shutil.copy(chain / "code.py", chain / "first.txt")
        (chain / "code.py").write_text("edited\n")
    assert graph.reasons("first") == ["never run"]
    assert not (chain / "dvc.lock").exists()
    with graph.reproducing("first") as command:
        assert command, "it is not in the run cache either"
        run(command, chain)


def test_a_stage_that_failed_leaves_no_lock_and_no_record(chain):
    graph = Graph(chain)
    with pytest.raises(GraphError, match=r"output 'first\.txt' does not exist"), graph.reproducing("first"):
        pass
    with pytest.raises(ValueError, match="its own"), graph.reproducing("first"):
        raise ValueError("its own")
    assert not any(json.loads((chain / ".dvc/tmp/rwlock").read_text()).values())
    assert graph.reasons("first") == ["never run"]


def test_path_locked_by_another_process_is_busy(chain):
    slow = chain / "dvc.yaml"
    slow.write_text(CHAIN.replace("cat code.py >", "touch begun; sleep 3; cat code.py >"))
    other = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "-q", "first"], cwd=chain)
    wait_for((chain / "begun").exists)
    graph = Graph(chain)
    with pytest.raises(BusyError, match="is busy"):
        graph.reasons("first")
    assert graph.status()["first"] == ["a running stage is writing its inputs or outputs"]
    with pytest.raises(BusyError, match="is busy"), graph.reproducing("first"):
        pass
    assert other.wait() == 0
    assert graph.reasons("first") == [], "what the other has recorded is read"


def test_graph_inputs_are_made_by_no_stage(toy, monkeypatch):
    root = toy(
        """
stages:
  first:
    cmd: mkdir -p made && cat raw > made/first.txt
    deps: [raw, code.py]
    outs: [made/first.txt]
  second:
    cmd: cat made/first.txt > second.txt
    deps: [made, /etc/hosts, other.py]
    outs: [second.txt]
""",
        code_py="1",
        other_py="2",
    )
    graph = Graph(root)
    assert graph.given(["first"]) == ["code.py", "raw"]
    assert graph.given(["first", "second"]) == ["code.py", "other.py", "raw"]
    assert graph.cache == root / ".dvc/cache"


def test_shared_run_cache_is_locked_by_one_checkout(chain, monkeypatch):
    """DVC takes an entry that another checkout is writing for a damaged one, and deletes it under its hands."""
    from dvc.stage.cache import StageCache
    from dvc.utils import serialize

    graph = Graph(chain)
    alone = []

    def lock():
        folder = os.open(graph.cache, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(folder)

    def looking(original):
        def look(*arguments, **options):
            with pytest.raises(BlockingIOError):
                lock()
            alone.append(original.__name__)
            return original(*arguments, **options)

        return look

    monkeypatch.setattr(StageCache, "_load", looking(StageCache._load))
    monkeypatch.setattr(serialize, "dump_yaml", looking(serialize.dump_yaml))
    with graph.reproducing("first"):
        (chain / "first.txt").write_text("pass\n")
        lock()  # while a stage runs others may have it
    assert {"_load", "dump_yaml"} <= set(alone)


def test_graph_names_undecodable_file_names(toy):
    root = toy("stages: {first: {cmd: touch out, deps: [texts], outs: [out]}}")
    (root / "texts").mkdir()
    (root / os.fsdecode(b"texts/caf\xe9.txt")).touch()
    with pytest.raises(GraphError) as error:
        Graph(root).status()
    assert str(error.value) == f"{root}/texts/caf\\xe9.txt: the name of this file is not UTF-8; rename it"
    (root / os.fsdecode(b"texts/caf\xe9.txt")).rename(root / "texts/caf\u00e9.txt")
    assert Graph(root).status() == {"first": ["never run"]}
