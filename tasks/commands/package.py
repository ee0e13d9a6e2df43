"""Checkpoints as models in MLflow, and the proof that they work. Run by registration.

``python -m tasks.commands.package REQUEST ANSWER``: the file REQUEST holds ``{"model": ..., "log": [{"checkpoint": ...,
"evidence": [...], "tags": ..., "parent": ...}], "try": [number, ...]}``. Each item of ``log`` becomes a version of the
registered model, from a new run with its evidence, report and samples, and with the parameters, metrics and data by
which models are compared. These versions and those to try are then loaded, and have to answer. The file ANSWER gets
``{"error": ..., "problems": {number: problem}}``: why nothing could be logged, and per version null or ``{"error": ...,
"passing": whether a retry may succeed}``. MLflow's store is that of ``MLFLOW_TRACKING_URI``, the experiment that of
``MLFLOW_EXPERIMENT_NAME``.

Slow imports and look-ups are done here, once, but our own modules are not imported: all work is done in forks of this
process. So a fork that tries a version proves that the version works with the code that it carries, not the checkout's.
"""

import errno
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any

import mlflow
import mlflow.pyfunc
import pandas as pd
import sqlalchemy.orm
import torch  # noqa: F401  the forks need it
from mlflow.entities import Metric
from mlflow.store.model_registry import sqlalchemy_store as _registry  # noqa: F401  likewise
from mlflow.store.tracking import sqlalchemy_store as _store  # noqa: F401
from mlflow.utils.requirements_utils import warn_dependency_requirement_mismatches

TRIAL = pd.DataFrame([{"text": "The state of the union is"}]), {"max_new_tokens": 8}
"""The request that a version must answer to prove that it works."""
TRIAL_S = 300.0
"""How long it may take to load and answer."""
LOG_S = 3600.0
"""How long the logging of all checkpoints may take, uploads included."""
UNJUDGED = "Not judged by the gate. If that was tried, the tag `gate.reasons` says why it failed."
"""The description of a version until the gate has written another one."""
MODEL = """Each new checkpoint of the pipeline is a version here. Open one for its decision record: what the gate \
compared, and why it decided so. The alias `champion` is the model in use, `challenger` the last other version that \
the gate judged.

On the command line: `plm status` (who is champion and why), `plm compare 1 3`, `plm promote 3 --reason "..."`, \
`plm rollback --reason "..."`. The ledger of all decisions is the experiment with `-decisions` in its name."""
"""The description of the registered model."""
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Errors of the machine, not of the model."""


def log(model: str, checkpoint: str, evidence: Sequence[str], tags: dict[str, str], parent: str) -> str:
    """Log all that belongs to one version, and make it a version of the registered model; returns its number."""
    # Not at the top of the file: trying a version must not load the checkout's packages.
    from plm_core.evaluation.evidence import SCORE
    from plm_core.shared import paths
    from plm_core.shared.files import sha256
    from tasks.publishing.mlflow_model import log_model
    from tasks.publishing.mlflow_run import datasets, flatten
    from tasks.reporting.version_facts import facts as described

    folder = Path(checkpoint)
    files = [Path(file) for file in evidence]
    facts = described(folder.name)
    tags = facts.tags | tags
    client = mlflow.MlflowClient()
    below = {"plm.stage": "register"} | ({"mlflow.parentRunId": parent} if parent else {})
    with mlflow.start_run(run_name=f"register-{folder.name}", tags=tags | below, log_system_metrics=False) as run:
        for file in files:
            mlflow.log_artifact(str(file), "evidence")
        for place, path in facts.files.items():
            mlflow.log_artifact(str(path), place)
        for name, section in facts.params.items():  # one after the other: MLflow takes at most 100 parameters at once
            mlflow.log_params(dict(flatten({name: section})))
        inputs = datasets(facts.data | {path.as_posix(): sha256(path) for path in sorted(paths.PAIRS.glob("*.jsonl"))})
        client.log_inputs(run.info.run_id, inputs)
        info = log_model(folder)

        # A result belongs to the data that it was measured on; a cost, or the mean of all tasks, to none.
        data = {given.dataset.name: given.dataset for given in inputs}
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, 0, info.model_id) for name, value in facts.metrics.items()]
        for name, value in read_metrics(folder.name, files).items():
            task = name.partition("/")[0] if "/" in name else ""
            places = [paths.EXAMPLES / task, paths.PAIRS / f"{task}.jsonl"] if task else [paths.CORPUS / "test.parquet"]
            of = next((data[str(place)] for place in places if str(place) in data and name != SCORE), None)
            source = (of.name, of.digest) if of else (None, None)
            metrics.append(Metric(name, value, now, 0, info.model_id, *source))
        client.log_batch(run.info.run_id, metrics)
    made = mlflow.register_model(info.model_uri, model, tags=tags)
    client.update_model_version(model, made.version, UNJUDGED)
    if not client.get_registered_model(model).description:  # otherwise it is a person's
        client.update_registered_model(model, MODEL)
    return str(made.version)


def read_metrics(model: str, evidence: Sequence[Path]) -> dict[str, float]:
    """The numbers in the metrics files that belong to a model's evidence: ``evaluate-<model>.json``,
    ``finetune-<model>-<task>-<seed>.json``.

    Those of a task are means over its seeds, named ``<task>/<name>``, as in ``promotion.metrics``; ``score`` is the
    mean of the tasks' scores.
    """
    from plm_core.evaluation.evidence import SCORE, read_task, task_files

    def numbers(name: str) -> dict[str, float]:
        path = evidence[0].parents[2] / "metrics" / f"{name}.json"
        metrics = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {name: value for name, value in metrics.items() if type(value) in (int, float)}

    tasks = task_files(evidence[0].parent, {path.name for path in evidence})
    result = numbers(f"evaluate-{model}")
    for task, files in tasks.items():
        seeds = [numbers(f"finetune-{model}-{path.stem.replace('.', '-')}") for path in files]
        result |= {f"{task}/{name}": fmean(run[name] for run in seeds if name in run) for name in seeds[0]}
    scores = {task: read_task(files).value for task, files in tasks.items()}
    result |= {f"{task}/{SCORE}": value for task, value in scores.items()}
    return result | ({SCORE: fmean(scores.values())} if scores else {})


def try_version(uri: str) -> None:
    """Load a version and let it answer.

    Raises:
        ValueError: its answer to one text is not one likelihood, or it needs code of the checkout.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
        del sys.modules[name]
    sources = {spec.origin for name in ("plm_core", "tasks") if (spec := importlib.util.find_spec(name))}
    answer = mlflow.pyfunc.load_model(uri).predict(*TRIAL)
    rows = answer.to_dict("records") if isinstance(answer, pd.DataFrame) else []
    if len(rows) != 1 or not isinstance(rows[0].get("likelihood"), float):
        raise ValueError(f"its answer to one text is {str(answer)[:200]}")
    for name in ("plm_core", "tasks"):
        if getattr(sys.modules.get(name), "__file__", None) in sources:
            raise ValueError(f"it does not carry the package {name} that it needs")


def in_forks(calls: Sequence[Callable[[], Any]], limit_s: float) -> list[dict[str, Any]]:
    """Make each call in a fork of this process, side by side.

    Returns:
        Per call ``value``, or ``error`` and ``passing``: whether it may succeed if it is made again.
    """
    context = multiprocessing.get_context("fork")
    deadline = time.monotonic() + limit_s
    running = []
    for call in calls:
        answer, child_end = context.Pipe(duplex=False)
        process = context.Process(target=_call, args=(call, child_end), daemon=True)
        process.start()
        child_end.close()
        running.append((process, answer))
    results: list[dict[str, Any]] = []
    for process, answer in running:
        if not answer.poll(max(0.0, deadline - time.monotonic())):
            process.kill()
            results.append({"error": "it did not finish in time", "passing": True})
            continue
        try:
            results.append(answer.recv())
        except EOFError:  # it ended without an answer
            process.join()
            code = process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            results.append({"error": how, "passing": code < 0})
    return results


def _call(call: Callable[[], Any], answer: Connection) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(tempfile.gettempdir())
    try:
        answer.send({"value": call()})
    except Exception as error:  # noqa: BLE001  the requesting process says what it was
        passing = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in PASSING)
        lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        answer.send({"error": lines[-1][:400], "passing": passing})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Log the new versions, then try them and the other ones, as many side by side as there are cores."""
    model = request["model"]
    root = Path.cwd()

    def log_all() -> list[str]:
        os.chdir(root)
        return [log(model, **version) for version in request["log"]]

    (logged,) = in_forks([log_all], LOG_S)
    if "error" in logged:
        return {"error": logged["error"], "problems": {}}
    numbers = [*request["try"], *logged["value"]]
    results: list[dict[str, Any]] = []
    width = os.cpu_count() or 1
    for first in range(0, len(numbers), width):
        calls = [partial(try_version, f"models:/{model}/{number}") for number in numbers[first : first + width]]
        results += in_forks(calls, TRIAL_S)
    problems = [problem if "error" in problem else None for problem in results]
    return {"error": None, "problems": dict(zip(numbers, problems, strict=True))}


def main(request: str, answered: str) -> None:
    """Read the request from one file, and write the answer into another."""
    sqlalchemy.orm.configure_mappers()
    warn_dependency_requirement_mismatches(["torch"])
    result = answer(json.loads(Path(request).read_text(encoding="utf-8")))
    Path(answered).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
