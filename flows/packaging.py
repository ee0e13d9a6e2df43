"""A stage's checkpoint as a model version, and the proof in a fresh process that it works. Used by promotion.

MLflow logs and registers a model that cannot be loaded with no more than a warning; hence the fresh process.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.graph import Stage
from flows.registry import DIGEST_TAG, RegistrationFailed, Registry, RegistryError, Version

CHECKSUMS = "SHA256SUMS"

QUESTION = {"dataframe_records": [{"text": "The state of the union is"}]}


def checkpoint_digest(folder: Path) -> str:
    """The sha256 of a checkpoint's checksum list.

    Raises:
        RegistryError: the folder holds none.
    """
    try:
        return hashlib.sha256((folder / CHECKSUMS).read_bytes()).hexdigest()
    except OSError as error:
        raise RegistryError(
            f"{folder / CHECKSUMS}: {error.strerror}; expected a checkpoint made by its stage"
        ) from error


def evidence_files(root: Path, stage: Stage, stages: Iterable[Stage]) -> list[Path]:
    """The files in the stage's evidence folder that a stage of today's graph made: a removed one leaves its own there.

    Raises:
        RegistryError: there is none.
    """
    assert stage.register is not None
    folder = root / stage.register["evidence"]
    files = [path for made in stages for out in made.outs if (path := root / out).parent == folder and path.is_file()]
    if not files:
        raise RegistryError(f"{folder}: holds no output of any stage; expected the evidence of {stage.name}")
    return sorted(files)


def log_model(
    root: Path, registry: Registry, stage: Stage, evidence: Sequence[Path], parent_run_id: str | None
) -> Version:
    """Log checkpoint, evidence and metrics with ``python -m tasks.package``, and make them a version of the model.

    Raises:
        RegistryError: the checkpoint is missing.
        RegistrationFailed: they could not be logged.
    """
    import mlflow

    assert stage.register is not None
    checkpoint = root / stage.register["checkpoint"]
    tags = {
        DIGEST_TAG: checkpoint_digest(checkpoint),
        "evidence.sha256": _digest(evidence),
        "dvc.stage": stage.name,
        "plm.model": checkpoint.name,
        **_commit(root),
    }
    known = parent_run_id and not parent_run_id.startswith("journal:")  # else MLflow was away when the pipeline began
    parent = {"mlflow.parentRunId": parent_run_id} if known else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logged.json"
        command = [sys.executable, "-m", "tasks.package", "--checkpoint", str(checkpoint), "--evidence"]
        command += [*map(str, evidence), "--tags", json.dumps(tags | parent), "--out", str(out)]
        done = _run(command, root, registry, {"MLFLOW_EXPERIMENT_NAME": registry.tracking.experiment})
        if done.returncode != 0:
            raise RegistrationFailed(f"{stage.name}: its model could not be logged: {_last_line(done)}")
        logged = json.loads(out.read_text())
    made = mlflow.register_model(logged["model_uri"], registry.name, tags=tags)
    return registry.get(str(made.version))


def try_model(registry: Registry, version: Version) -> str | None:
    """Load the version in a fresh process and let it answer; returns what is wrong with it, None when it works."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "question.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(QUESTION))
        command = [sys.executable, "-m", "mlflow", "models", "predict", "--env-manager", "local"]
        command += ["-m", f"models:/{registry.name}/{version.number}", "-i", str(question), "-o", str(answer)]
        # Not in the repository: the model must work with the code that it carries.
        done = _run(command, Path(folder), registry, {})
        if done.returncode == 0 and answer.is_file():
            return _wrong_answer(json.loads(answer.read_text()))
    return _last_line(done)


def _wrong_answer(answer: Any) -> str | None:
    rows = answer.get("predictions") if isinstance(answer, dict) else None
    if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0].get("likelihood"), float):
        return None
    return f"its answer to one text is {json.dumps(answer)[:200]}"


def _run(
    command: list[str], folder: Path, registry: Registry, extra: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "MLFLOW_TRACKING_URI": registry.tracking.uri, **extra}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:400] if lines else f"exit status {done.returncode}"


def _digest(files: Sequence[Path]) -> str:
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _commit(root: Path) -> dict[str, str]:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return {"git.commit": done.stdout.strip()} if done.returncode == 0 else {}
