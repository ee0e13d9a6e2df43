"""Logs checkpoints as model versions, and tests in fresh processes that versions work. Used by ``promotion.py``.

``python -m tasks.package`` does both: importing MLflow and torch takes seconds, so one process serves a whole
registration, and this one never loads a model.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.registry import CHECKSUMS, DIGEST_TAG, EVIDENCE_TAG, Registry
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
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tasks.package"],
            cwd=root,
            env=ENVIRONMENT | os.environ | store,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # only this process gets a Ctrl-C, and ends the other
        )

    def package(
        self, registry: Registry, stages: Sequence[Stage], graph: Sequence[Stage], parent: str, untried: Sequence[str]
    ) -> dict[str, str | None]:
        """Make the checkpoint, evidence and metrics of each stage a version of the model, in this order; then load and
        query these versions, and those whose numbers are ``untried``, each in a fresh process.

        ``parent`` is the MLflow run under which new versions are shown; empty for none.

        Returns:
            What is wrong with each version, by its number; None if it works.

        Raises:
            RegistryError: a stage has no evidence.
            RegistrationFailed: a version could not be logged, or not be tested, for example because memory ran out.
        """
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=self._root, capture_output=True, text=True, check=False
        )
        new = []
        for stage in stages:
            assert stage.register is not None
            checkpoint = self._root / stage.register["checkpoint"]
            evidence = evidence_files(self._root, stage, graph)
            tags = {
                DIGEST_TAG: checkpoint_digest(checkpoint),
                EVIDENCE_TAG: evidence_digest(evidence),
                "dvc.stage": stage.name,
                "plm.model": checkpoint.name,
                **({} if commit.returncode else {"git.commit": commit.stdout.strip()}),
            }
            files = {"checkpoint": str(checkpoint), "evidence": [str(file) for file in evidence]}
            new.append({**files, "tags": tags, "parent": parent})
        if not new and not untried:
            return {}
        answer = self._ask({"model": registry.name, "log": new, "try": list(untried)})
        if answer["error"]:
            names = ", ".join(stage.name for stage in stages)
            raise RegistrationFailed(f"{names}: could not be logged as models: {answer['error']}")
        for number, problem in answer["problems"].items():
            if problem and problem["passing"]:
                what = f"version {number} could not be tested: {problem['error']}"
                raise RegistrationFailed(f"{registry.name}: {what}; run again")
        return {number: problem and shown(problem["error"]) for number, problem in answer["problems"].items()}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            status = self._process.wait()
            raise RegistrationFailed(f"tasks.package ended with exit status {status}; see its error above")
        return dict(json.loads(answer))

    def __enter__(self) -> "Packager":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the forks that try versions
        self._process.communicate()
