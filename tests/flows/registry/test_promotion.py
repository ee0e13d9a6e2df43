"""Registration, gate, aliases and ledger with a real store and real models that are really loaded and served."""

import contextlib
import json
import math
import os
import shutil
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from registries import PARAMS, project

from flows import cli
from flows.maintenance import doctor, findings
from flows.processes import supervisor
from flows.registry import gate_runner, model_registry, promotion, registry_status
from flows.registry.mlflow_client import RegistrationFailed, RegistryError
from flows.run.graph import Stage
from plm_core import checkpoint
from plm_core.evaluation import pair_scoring
from plm_core.shared.files import sha256
from plm_core.text.tokenizer_kinds import open_tokenizer, train_tokenizer
from plm_core.text.tokenizers import MODEL_FILE, TokenizerConfig

REPOSITORY = Path(__file__).parents[3]
STAGE = Stage(
    "pretrain@gpt",
    register={"checkpoint": "artifacts/models/gpt", "evidence": "artifacts/evidence/gpt"},
    # In the real graph the evidence comes from stages below; who made it does not matter here.
    outs=("artifacts/models/gpt", "artifacts/evidence/gpt/likelihood.csv", "artifacts/evidence/gpt/cost.csv"),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / MODEL_FILE
    texts = [f"The state of the union is strong, said number {i} of the people." for i in range(200)]
    path.write_bytes(train_tokenizer(texts, TokenizerConfig("bpe", 320)))
    return open_tokenizer(path)


@pytest.fixture
def root(tmp_path, monkeypatch, empty_store):
    """A repository's folder whose stages are this repository's own, and the current one."""
    for name in ("MLFLOW_TRACKING_URI", "PLM_TRACKING"):
        monkeypatch.delenv(name, raising=False)
    for name in ("tasks", "plm_core"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return project(tmp_path, empty_store)


def documents(nats, sha="a", quantity="bits_per_byte", size=100):
    """The lines of ``likelihood.csv`` for nine documents with these nats each."""
    rows = "".join(f"{i},{sha},{size},20,{nats},{quantity},r\n" for i in range(9))
    return f"id,sha256,bytes,tokens,nats,quantity,measured\n{rows}"


def train(root, tokenizer, seed, nats, sha="a", cost=7):
    """What stages pretrain and evaluate leave: a checkpoint, evidence, metrics."""
    model = {"vocab_size": 320, "context": 32, "layers": 1, "heads": 2, "width": 16}
    torch.manual_seed(seed)
    config = checkpoint.CheckpointConfig(1, "gpt", "causal", model, tokenizer.sha256, 1, 5.0)
    digest = checkpoint.save(
        root / "artifacts/models/gpt", checkpoint.build("gpt", model, "").state_dict(), tokenizer, config
    )
    evidence, metrics = root / "artifacts/evidence/gpt", root / "artifacts/metrics"
    evidence.mkdir(parents=True, exist_ok=True)
    metrics.mkdir(exist_ok=True)
    (evidence / "likelihood.csv").write_text(documents(nats, sha))
    (evidence / "cost.csv").write_text(f"quantity,value\nparameters,{cost}\n")
    (metrics / "evaluate-gpt.json").write_text(json.dumps({"bits_per_byte": nats / 100}))
    return digest


def _break(root, package):
    """Let the checkout's package be one that cannot be imported."""
    (root / package).unlink()
    (root / package).mkdir()
    (root / package / "__init__.py").write_text("raise RuntimeError('the code of the checkout')\n")


def _mend(root, package):
    shutil.rmtree(root / package)
    (root / package).symlink_to(REPOSITORY / package)


def aliases(root):
    return {v["version"]: v["aliases"] for v in registry_status.registry_status(root)["versions"] if v["aliases"]}


def forget(root, version):
    """What `mlflow gc` leaves of a version's run: nothing."""
    with model_registry.open_registry(root) as opened:
        run = opened.get(version).run_id
        opened.client.delete_run(run)
        opened.client._tracking_client.store._hard_delete_run(run)
        shutil.rmtree(root / f"artifacts/mlflow/artifacts/{run}")


def test_version_trial_takes_no_gpu(root, monkeypatch):
    started = []
    process = contextlib.nullcontext(SimpleNamespace(stderr=None, wait=lambda: 1))
    monkeypatch.setattr(supervisor, "start_supervisor", lambda *_, **options: started.append(options["env"]) or process)
    with (
        model_registry.open_registry(root) as opened,
        pytest.raises(RegistrationFailed, match="ended with exit status 1"),
    ):
        gate_runner.package(root, opened, [], ["1"])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in started] == [""]


@pytest.mark.slow
def test_registered_model_lifecycle(root, tokenizer, capfd):
    """One test, because each step needs the one before: loading models in fresh processes takes seconds."""
    assert promotion.register(root, [Stage("ingest")], None) == []

    first = train(root, tokenizer, seed=1, nats=200.0)
    (root / "artifacts/corpus/splits").mkdir(parents=True)
    (root / "artifacts/corpus/splits/test.parquet").write_bytes(b"as stage deduplicate writes it")
    with model_registry.open_registry(root) as opened:
        parent = opened.client.create_run(opened.experiment(), tags={"plm.journal": "k7"}).info.run_id
    (outcome,) = promotion.register(root, [Stage("ingest"), STAGE], "journal:k7")
    with model_registry.open_registry(root) as opened:
        assert opened.client.get_run(opened.champion().run_id).data.tags["mlflow.parentRunId"] == parent
        (model,) = opened.client.search_logged_models([opened.experiment()])
        data = "artifacts/corpus/splits/test.parquet"
        by_data = [(metric.key, metric.dataset_name, metric.dataset_digest) for metric in model.metrics]
        assert by_data == [("bits_per_byte", data, sha256(root / data)[:36])]
    assert (outcome.version, outcome.action) == ("1", "promoted")
    assert outcome.reasons == ["there is no champion yet, so it becomes the champion"]
    assert aliases(root) == {"1": ["champion"]}
    (again,) = promotion.register(root, [STAGE], None)
    assert again.action == "unchanged"

    train(root, tokenizer, seed=2, nats=210.0)
    (worse,) = promotion.register(root, [STAGE], "journal:unknown")
    assert (worse.version, worse.action) == ("2", "refused")
    assert capfd.readouterr().out.startswith("pretrain@gpt: plm version 1 promoted: there is no champion yet, so it")
    assert any("bits_per_byte is significantly worse: +" in reason for reason in worse.reasons)
    assert aliases(root) == {"1": ["champion"], "2": ["challenger"]}

    train(root, tokenizer, seed=3, nats=190.0)
    (better,) = promotion.register(root, [STAGE], None)
    assert (better.version, better.action) == ("3", "promoted")
    assert aliases(root) == {"3": ["champion"]}
    well = findings.apply_checks({"registry": doctor.CHECKS["registry"]}, root, True)
    assert (well.findings, well.unseen) == ([], {})
    papers = {version: opened.client.get_model_version("plm", version).description for version in "123"}
    assert papers["1"].startswith("Passed by the gate, without a champion")
    assert papers["2"].startswith("Refused by the gate, compared on the same examples with version 1")
    assert f"[the champion's run](#/experiments/{opened.experiment()}/runs/{opened.get('1').run_id})" in papers["2"]
    with model_registry.open_registry(root) as opened:
        assert [opened.client.get_run(opened.get(n).run_id).data.tags["gate"] for n in "12"] == ["passed", "refused"]
        assert "decision.html" in {file.path for file in opened.client.list_artifacts(opened.get("2").run_id)}

    status = registry_status.registry_status(root)
    assert json.loads(json.dumps(status)) == status
    assert [v["version"] for v in status["versions"]] == ["3", "2", "1"]
    assert [v["gate"] for v in status["versions"]] == ["passed", "refused", "passed"]
    assert status["versions"][2]["checkpoint_sha256"] == first
    assert status["versions"][0]["metrics"] == {"bits_per_byte": 1.9}
    cli.compare("champion", "1", root / "compared")
    (row,) = json.loads((root / "compared/compare.json").read_text())["likelihood"]
    assert (row["better"], row["score"]) == ("champion", "bits_per_byte")
    assert row["difference"]["value"] == pytest.approx(0.1 / math.log(2))

    with model_registry.open_registry(root) as opened:
        opened.client.delete_model_version_tag("plm", "3", "gate")
    (again,) = promotion.register(root, [STAGE], None)
    assert (again.version, again.action) == ("3", "unchanged")

    assert promotion.promote(root, "2", "try it").action == "refused"
    _break(root, "plm_core")
    assert promotion.promote(root, "2", "we know better", force=True).action == "promoted by hand"
    _mend(root, "plm_core")
    assert aliases(root) == {"2": ["champion"]}
    assert registry_status.registry_status(root)["versions"][1]["gate"] == "overruled"
    with pytest.raises(RegistryError, match="version 2 is the champion already"):
        promotion.promote(root, "champion", "again")
    with pytest.raises(RegistryError, match=r"no version or alias '9'; versions are: 1, 2, 3"):
        promotion.promote(root, "9", "")
    forget(root, "3")
    with model_registry.open_registry(root) as opened:
        description = opened.client.get_model_version("plm", "2").description
        assert description.startswith("Overruled, promoted by hand: we know better\n\nRefused by the gate")
        assert opened.client.get_run(opened.get("2").run_id).data.tags["gate"] == "overruled"
    assert promotion.rollback(root, "it was worse").version == "3"
    assert registry_status.registry_status(root)["versions"][0]["metrics"] == {}
    (again,) = promotion.register(root, [STAGE], None)
    assert (again.version, again.action) == ("3", "unchanged")
    assert promotion.rollback(root, "so was this").version == "1"
    with pytest.raises(RegistryError, match="version 1 is the champion, and there was none before it"):
        promotion.rollback(root, "")


@pytest.mark.slow
def test_a_version_is_promoted_in_another_registry_with_its_evidence_and_source(root, tokenizer, server, capsys):
    for seed, nats in ((1, 200.0), (2, 210.0)):
        digest = train(root, tokenizer, seed, nats)
        promotion.register(root, [STAGE], None)

    def promote(version, to, *more):
        capsys.readouterr()
        with contextlib.suppress(SystemExit):
            cli.main(["promote", version, "--reason", "release", "--to", to, *more])
        return "".join(capsys.readouterr())

    for to, place in ((server.address, (server.address, "plm")), ("models:/production", (None, "production"))):
        assert promote("2", to).startswith("error: plm: the gate has refused version 2; --force overrules it")
        assert f"version 1 in {to}: promoted by hand: release; the gate was not asked" in promote("2", to, "--force")
        assert f"version 1 in {to}: unchanged: it is the champion there" in promote("2", to, "--force")
        assert f"version 2 in {to}: promoted by hand: release; bits_per_byte is significantly better" in promote(
            "1", to
        )
        with model_registry.open_registry(root, *place) as there:
            assert there.ledger.champions() == ["1", "2"]
            copy = there.get("1")
            assert (copy.tags["source.gate"], copy.tags["gate"], copy.tags["checkpoint.sha256"]) == (
                "refused",
                "overruled",
                digest,
            )
            assert copy.tags["source"] == f"models:/plm/2 of sqlite:///{root}/artifacts/mlflow/mlflow.db"
            text = there.client.get_model_version(there.name, "1").description
            assert text.startswith("Overruled, promoted by hand: release\n\nCopied from models:/plm/2 of sqlite:")
            assert "Refused by the gate, compared on the same examples with version 1" in text
            assert there.client.get_run(copy.run_id).data.metrics == {"bits_per_byte": 2.1}
            assert checkpoint.load(there.checkpoint(copy, root / f"copy of {there.name}{len(to)}")).digest == digest
    assert aliases(root) == {"1": ["champion"], "2": ["challenger"]}
    assert promote("9", server.address).startswith("error: plm: no version or alias '9'; versions are: 1, 2\n")
    assert promote("1", "production").startswith("error: --to production: expected the address of another MLflow, or ")
    server.kill()
    assert promote("1", server.address).startswith(f"error: MLflow at {server.address}: ")


@pytest.mark.slow
def test_promotion_refuses_a_model_that_cannot_be_loaded(root, tokenizer):
    train(root, tokenizer, seed=1, nats=200.0)
    promotion.register(root, [STAGE], None)
    damaged = train(root, tokenizer, seed=4, nats=100.0)
    with (root / "artifacts/models/gpt/model.safetensors").open("ab") as file:
        file.write(b"x")
    (refused,) = promotion.register(root, [STAGE], None)
    assert (refused.version, refused.action) == ("2", "refused")
    assert "the model cannot be used" in refused.reasons[0]
    assert "model.safetensors: checksum" in refused.reasons[0]
    assert aliases(root) == {"1": ["champion"]}
    assert damaged == registry_status.registry_status(root)["versions"][0]["checkpoint_sha256"]
    with pytest.raises(RegistryError, match="version 2 cannot be used"):
        promotion.promote(root, "2", "", force=True)
    train(root, tokenizer, seed=6, nats=100.0)
    assert promotion.register(root, [STAGE], None)[0].action == "promoted"
    _take_the_code_away(root, "1")
    with pytest.raises(RegistryError, match=r"version 1 cannot be used: .* does not carry the package plm_core"):
        promotion.promote(root, "1", "", force=True)


def _take_the_code_away(root, version):
    with model_registry.open_registry(root) as opened:
        source = opened.client.get_model_version("plm", version).source
        location = opened.client.get_logged_model(source.removeprefix("models:/")).artifact_location
    shutil.rmtree(Path(location.removeprefix("file://")) / "code/plm_core")


@pytest.mark.parametrize(
    ("file", "measured"),
    [("likelihood.csv", ("", "")), ("sst2.3.csv", ("sst2", "3")), ("own-pairs.0.csv", ("own-pairs", "0"))],
)
def test_task_and_seed_follow_from_evidence_file_name(file, measured):
    """By the seed: none is a likelihood, 0 is a set of minimal pairs, for which nothing is trained."""
    assert gate_runner.task_and_seed(file) == measured
    if measured[1] == "0":
        assert pair_scoring.file_of(measured[0]) == file


BY_SCORE = f"""{PARAMS.partition("promotion:")[0]}
promotion:
  registered_model: plm
  primary: score
  alpha: 0.05
  margin: 0.01
  metrics:
    bits_per_byte: {{direction: lower, tolerance: 0.02}}
    pseudo_bits_per_byte: {{direction: lower, tolerance: 0.02}}
    score: {{direction: higher, tolerance: 0.03}}
"""


def era(right):
    """The lines of a task's file in which this many of 100 answers are right."""
    body = "".join(f"{i},x{i},,era{i % 4},era{(i + (i >= right)) % 4},0.75,accuracy,r\n" for i in range(100))
    return f"id,sha256,subset,label,prediction,confidence,score,measured\n{body}"


STAND_IN = """
import pathlib, sys
from plm_core import checkpoint
given = dict(zip(sys.argv[-4::2], sys.argv[-3::2]))
assert sys.argv[1:-4] == {words}
checkpoint.load(pathlib.Path(given["--checkpoint"]))
print({words}, file=open({log!r}, "a"))
for name, text in {files}.items():
    (pathlib.Path(given["--evidence"]) / name).write_text(text)
"""


@pytest.mark.slow
def test_champion_with_other_examples_is_evaluated_again(root, tokenizer, capfd):
    """Both tasks are replaced by ones that know today's examples: the real ones need a corpus."""
    (root / "params.yaml").write_text(BY_SCORE)
    folder = root / "artifacts/evidence/gpt"
    made = Stage("finetune", outs=tuple(f"artifacts/evidence/gpt/era.{seed}.csv" for seed in (1, 2)))

    def outcome(seed, nats, right):
        train(root, tokenizer, seed, nats, sha="today")
        for number in (1, 2):
            (folder / f"era.{number}.csv").write_text(era(right))
        return promotion.register(root, [STAGE, made], None)[0]

    def evaluations():
        words = (root / "evaluations").read_text().splitlines() if (root / "evaluations").exists() else []
        (root / "evaluations").unlink(missing_ok=True)
        return words

    train(root, tokenizer, seed=1, nats=200.0, sha="yesterday")
    (folder / "cost.csv").unlink()
    (folder / "era.1.csv").write_text(era(50).replace(",x", ",y"))
    promotion.register(root, [STAGE, made], None)
    (root / "tasks").unlink()
    shutil.copytree(REPOSITORY / "tasks", root / "tasks")
    cost = "quantity,value\nparameters,9\n"
    for name, words, files in (
        ("finetune", ["gpt", "era"], {"era.1.csv": era(50), "era.2.csv": era(50)}),
        ("evaluate", ["gpt"], {"likelihood.csv": documents(195.0, "today"), "cost.csv": cost}),
    ):
        text = STAND_IN.format(words=words, files=files, log=str(root / "evaluations"))
        (root / f"tasks/stages/{name}.py").write_text(text)
    cheaper = outcome(2, 195.0, 50)
    assert cheaper.action == "promoted"
    assert "the model is cheaper: 7 parameters, the champion's 9;" in cheaper.reasons[0]
    assert sorted(evaluations()) == ["['gpt', 'era']", "['gpt']"]
    assert "ended:" not in capfd.readouterr().err

    # What was evaluated again is kept, unless it was lost or damaged since.
    cli.compare("champion", "1", root / "compared")
    assert evaluations() == []
    with model_registry.open_registry(root) as opened:
        first = opened.get("1")
        kept = opened.evidence(first, root / "kept")
        assert (kept / "likelihood.csv").read_text() == documents(195.0, "today")
        (stored,) = (root / "artifacts/mlflow/artifacts").glob(f"{first.run_id}/artifacts/evidence-*/likelihood.csv")
        stored.write_text(documents(190.0, "today"))
        assert list(opened.evidence(first, root / "damaged").iterdir()) == []
    assert "warning: plm version 1: its stored evidence is damaged" in capfd.readouterr().err
    forget(root, "2")
    assert outcome(3, 210.0, 30).action == "refused"
    assert "warning: plm version 2: its stored evidence has been deleted" in capfd.readouterr().err
    assert sorted(evaluations()) == ["['gpt', 'era']", "['gpt']"]
    _damage_the_checkpoint(root)


def _damage_the_checkpoint(root):
    with model_registry.open_registry(root) as opened:
        for listing in (root / "artifacts/mlflow/artifacts/models").glob("*/artifacts/artifacts/gpt/SHA256SUMS"):
            listing.write_text(listing.read_text() + "\n")
        with pytest.raises(
            RegistryError, match="plm: the checkpoint of version 3 is damaged: SHA256SUMS has the sha256"
        ):
            opened.checkpoint(opened.get("3"), root / "fetched")


@pytest.mark.slow
def test_promotion_compares_with_the_last_champion_of_its_quantity(root, tokenizer):
    """The likelihood of the champion, which a person has made one, cannot be compared with the challenger's."""
    (root / "params.yaml").write_text(BY_SCORE)

    def outcome(seed, quantity, nats, right, sha="a"):
        train(root, tokenizer, seed, nats)
        folder = root / "artifacts/evidence/gpt"
        (folder / "likelihood.csv").write_text(documents(nats, sha, quantity))
        (folder / "era.1.csv").write_text(era(right))
        *_, registered = promotion.register(
            root, [STAGE, Stage("other", outs=("artifacts/evidence/gpt/era.1.csv",))], None
        )
        return registered

    assert outcome(1, "bits_per_byte", 150.0, 60).action == "promoted"
    (first,) = registry_status.registry_status(root)["versions"]
    assert first["metrics"] == {"bits_per_byte": 1.5, "era/score": 0.6, "score": 0.6}
    assert outcome(2, "pseudo_bits_per_byte", 90.0, 40).action == "refused"
    with model_registry.open_registry(root) as opened:
        opened.set_alias("champion", "2")
    worse = outcome(3, "bits_per_byte", 170.0, 60)
    assert worse.action == "refused"
    assert worse.reasons[:-1] == [
        "bits_per_byte: worse by 0.2885; the tolerance is 0.02; compared with version 1, the last champion "
        "that has a bits_per_byte",
    ]
    assert worse.reasons[-1].endswith(": number 2 passes at a level of 0.0077")
    gone = outcome(4, "bits_per_byte", 140.0, 99, sha="b")  # no corpus: the earlier champion cannot be re-evaluated
    assert (gone.action, gone.reasons[1]) == (
        "promoted",
        "bits_per_byte: not comparable; compared with version 1, the last champion that has a bits_per_byte",
    )
    assert gone.reasons[-1].endswith(": number 3 passes at a level of 0.0051")
    with model_registry.open_registry(root) as opened:
        description = opened.client.get_model_version("plm", "4").description
    assert "not compared with version 1, the last champion that has a bits_per_byte: its evidence is of" in description


def test_an_opened_registry_leaves_the_environment_as_it_was(root):
    before = dict(os.environ)
    with model_registry.open_registry(root) as opened:
        assert opened.versions() == []
    assert dict(os.environ) == before


def test_registration_reports_mlflow_down_at_once(root, tokenizer, monkeypatch):
    train(root, tokenizer, seed=5, nats=100.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bot:s3cret@127.0.0.1:9")
    begin = time.monotonic()
    with pytest.raises(RegistrationFailed, match=r"MLflow at http://127.0.0.1:9: API request to") as failed:
        promotion.register(root, [STAGE], None)
    assert "s3cret" not in "".join(traceback.format_exception(failed.value))
    assert time.monotonic() - begin < 30


def test_registration_leaves_out_evidence_of_no_stage(root):
    folder = root / "artifacts/evidence/gpt"
    folder.mkdir(parents=True)
    for name in ("likelihood.csv", "removed-task.1.csv", "kept-task.1.csv"):
        (folder / name).write_text("id\n")
    kept = Stage("finetune@gpt-kept-task", outs=("artifacts/evidence/gpt/kept-task.1.csv", "artifacts/finetuned/gpt"))
    other = Stage("finetune@bert-removed-task", outs=("artifacts/evidence/bert/removed-task.1.csv",))
    files = promotion.evidence_files(root, STAGE, [STAGE, kept, other])
    assert [path.name for path in files] == ["kept-task.1.csv", "likelihood.csv"]
    with pytest.raises(RegistryError, match=r"artifacts/evidence/gpt: contains no output of any stage"):
        promotion.evidence_files(root, STAGE, [other])


def test_a_missing_checkpoint_is_named(root):
    stage = Stage("pretrain@x", register={"checkpoint": "artifacts/models/x", "evidence": "artifacts/evidence/x"})
    with pytest.raises(RegistryError, match="artifacts/models/x/SHA256SUMS: No such file"):
        promotion.register(root, [stage], None)
