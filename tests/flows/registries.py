"""A registry in a real store, with versions as registration makes them but tiny: logged models, evidence, decisions."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flows.registry import model_registry
from flows.registry.ledger import Decision
from flows.registry.mlflow_client import evidence_digest

REPOSITORY = Path(__file__).parents[2]
PARAMS = """
tracking: {uri: "sqlite:///artifacts/mlflow/mlflow.db", experiment: plm}
promotion:
  registered_model: plm
  primary: bits_per_byte
  alpha: 0.05
  margin: 0.0
  metrics: {bits_per_byte: {direction: lower, tolerance: 0.0}}
retention: {versions: 2, champions: 2, days: 7, snapshots_days: 7}
"""
MLMODEL = """
artifact_path: models
flavors: {python_function: {artifacts: {checkpoint: {path: artifacts/gpt}}, loader_module: none}}
"""
HOUR_MS = 3_600_000
TRAINING = """
import sys
from tasks.tracking.tracker import tracked
with tracked("gpt", {}, {}, *sys.argv[1:]) as tracker:
    tracker.log({"loss": 1.0}, 1)
    print("begun", flush=True)
    sys.exit(75 if sys.stdin.readline() == "stop\\n" else 0)
"""


def training(root, *digest):
    """A tracked run that waits for a line, and can resume with a digest; no publisher sends it."""
    for name in ("tasks", "plm_core"):
        if not (root / name).exists():
            (root / name).symlink_to(REPOSITORY / name)
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, *digest],
        cwd=root,
        env={**os.environ, "PLM_TRACKING": "on", "PLM_PARENT_RUN_ID": "journal:none", "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n"
    return process


def checkpoint(folder, content):
    """A checkpoint's folder with its list of checksums, whose digest is returned."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content * 100)
    (folder / "config.json").write_text("{}")
    names = ("config.json", "model.safetensors")
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest()


def register(root, content, *, version=True, hours_ago=2):
    """What registration logs of a checkpoint; returns the version's number, or the run's id without a version."""
    when = int(time.time() * 1000) - hours_ago * HOUR_MS
    with model_registry.open_registry(root) as opened, tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch)
        (files / "evidence").mkdir()
        (files / "evidence/likelihood.csv").write_bytes(content)
        (files / "model").mkdir()
        (files / "model/MLmodel").write_text(MLMODEL)
        digest = checkpoint(files / "model/artifacts/gpt", content)
        tags = {"checkpoint.sha256": digest, "evidence.sha256": evidence_digest([files / "evidence/likelihood.csv"])}
        client, experiment = opened.client, opened.experiment()
        run = client.create_run(experiment, start_time=when, tags=tags, run_name="register").info.run_id
        client.log_artifacts(run, str(files / "evidence"), "evidence")
        model = client.create_logged_model(experiment, "gpt", run)
        client.log_model_artifacts(model.model_id, str(files / "model"))
        client.finalize_logged_model(model.model_id, "READY")
        client.set_terminated(run, "FINISHED", when)
        if not version:
            return run
        source = f"models:/{model.model_id}"
        made = client.create_model_version("plm", source, run, tags=tags, model_id=model.model_id)
        return str(made.version)


def judge(root, number, action="promoted"):
    """A decision that is carried out like the gate's."""
    gate = {"passed": action != "refused", "champion": None, "table": []}
    with model_registry.open_registry(root) as opened:
        opened.commit(Decision(action, number, opened.alias("champion") or "", ["because"], gate))


def project(root, database):
    """A checkout with an empty store."""
    (root / "params.yaml").write_text(PARAMS)
    (root / "artifacts/mlflow").mkdir(parents=True)
    shutil.copy(database, root / "artifacts/mlflow/mlflow.db")
    return root


def model_of(root, number):
    """The folder of a version's model."""
    with model_registry.open_registry(root) as opened:
        place = opened.client.get_model_version_download_uri("plm", number)
        model = opened.client.get_logged_model(place.rpartition("/")[2]) if place.startswith("models:") else None
    return Path((model.artifact_location if model else place).removeprefix("file://"))


def run_of(root, number):
    """The id of a version's run."""
    with model_registry.open_registry(root) as opened:
        return opened.get(number).run_id


def everything(root):
    """The bytes of every file of the store but the database and its locks, and every row of its tables."""
    import sqlite3

    folder = root / "artifacts/mlflow"
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with sqlite3.connect(folder / "mlflow.db") as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        rows = {name: sorted(map(repr, database.execute(f'select * from "{name}"'))) for name in tables}
    database.close()
    return {name: content for name, content in files.items() if name.startswith("artifacts/")}, rows
