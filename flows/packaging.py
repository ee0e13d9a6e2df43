"""Logs a stage's checkpoint as a model version, and tests in a fresh process that it works. Used by promotion.

``python -m tasks.package`` does both: importing MLflow and torch takes seconds, so one process serves a whole
registration, and this one never loads a model.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from flows.registry import CHECKSUMS, DIGEST_TAG, EVIDENCE_TAG, Registry, Version
from flows.settings import Tracking
from flows.stages import Stage
from flows.store import ENVIRONMENT, RegistrationFailed, RegistryError, evidence_digest, sha256
from plm_core.shared.stores import shown


def checkpoint_digest(folder: Path) -> str:
    """The sha256 of a checkpoint's checksum list.

    Raises:
        RegistryError: the folder has none.
    """
    try:
        return sha256(folder / CHECKSUMS)
    except OSError as error:
        raise RegistryError(
            f"{folder / CHECKSUMS}: {error.strerror}; expected a checkpoint made by its stage"
        ) from error


def evidence_files(root: Path, stage: Stage, stages: Iterable[Stage]) -> list[Path]:
    """The files in the stage's evidence folder that a stage of the current graph made: removed stages leave theirs.

    Raises:
        RegistryError: there is none.
    """
    assert stage.register is not None
    folder = root / stage.register["evidence"]
    files = [path for made in stages for out in made.outs if (path := root / out).parent == folder and path.is_file()]
    if not files:
        raise RegistryError(f"{folder}: contains no output of any stage; expected the evidence of {stage.name}")
    return sorted(files)


class Packager:
    """The process ``python -m tasks.package``. A context manager: it ends with the block, or when this process dies."""

    def __init__(self, root: Path, tracking: Tracking) -> None:
        """Start the process, which imports what it needs while this one does something else."""
        store = {"MLFLOW_TRACKING_URI": tracking.uri, "MLFLOW_EXPERIMENT_NAME": tracking.experiment}
        store["CUDA_VISIBLE_DEVICES"] = ""  # the test needs no GPU, and others may be using them
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tasks.package"],
            cwd=root,
            env=ENVIRONMENT | os.environ | store,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # only this process gets a Ctrl-C, and ends the other
        )

    def log(self, root: Path, registry: Registry, stages: Sequence[Stage], graph: Sequence[Stage], parent: str) -> None:
        """Make the checkpoint, evidence and metrics of each stage a version of the model, in this order.

        ``parent`` is the MLflow run under which they are shown; empty for none.

        Raises:
            RegistryError: a stage has no evidence.
            RegistrationFailed: they could not be logged.
        """
        requests = []
        for stage in stages:
            assert stage.register is not None
            checkpoint = root / stage.register["checkpoint"]
            evidence = evidence_files(root, stage, graph)
            tags = {
                DIGEST_TAG: checkpoint_digest(checkpoint),
                EVIDENCE_TAG: evidence_digest(evidence),
                "dvc.stage": stage.name,
                "plm.model": checkpoint.name,
                **_commit(root),
            }
            files = {"checkpoint": str(checkpoint), "evidence": [str(file) for file in evidence]}
            requests.append({**files, "tags": tags, "parent": parent, "model": registry.name})
        for problem in filter(None, self._ask("log", requests)):
            names = ", ".join(stage.name for stage in stages)
            raise RegistrationFailed(f"{names}: could not be logged as models: {problem['error']}")

    def problems(self, registry: Registry, versions: Sequence[Version]) -> list[str | None]:
        """Load and query each version in a fresh process; returns what is wrong with it, None if it works.

        Raises:
            RegistrationFailed: a version could not be tested, for example because memory ran out.
        """
        found = self._ask("try", [f"models:/{registry.name}/{version.number}" for version in versions])
        for version, problem in zip(versions, found, strict=True):
            if problem is not None and problem["passing"]:
                raise RegistrationFailed(
                    f"{registry.name}: version {version.number} could not be tested: {problem['error']}; run again"
                )
        return [problem and shown(problem["error"]) for problem in found]

    def _ask(self, what: str, of: Sequence[Any]) -> list[Any]:
        """The answers of the process, one per item; None if all is well."""
        if not of:
            return []
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({what: of}) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RegistrationFailed(f"tasks.package ended with exit status {process.wait()}; see its error above")
        return json.loads(answer)

    def __enter__(self) -> "Packager":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


def _commit(root: Path) -> dict[str, str]:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return {"git.commit": done.stdout.strip()} if done.returncode == 0 else {}
