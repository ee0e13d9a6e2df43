"""A checkpoint as a model in MLflow: ``python -m tasks.package``, which registration runs as a process.

It logs, in one new run named ``register``, the model (``tasks/serve.py`` with the checkpoint and ``plm_core``), the
evidence and the metrics, and writes where they are to ``--out``. The store and the experiment come from
``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``. MLflow tries the example while it logs, so torch and the
model are loaded here and not in the flow; what that says is only a warning to MLflow, and is tested afterwards.
"""

import argparse
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import mlflow
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

import plm_core
from plm_core.evaluation.evidence import SCORE, read_task, task_files

REQUIREMENTS = ("mlflow", "numpy", "pandas", "safetensors", "torch")
"""What ``tasks/serve.py`` and the core need to use a checkpoint; pinned to the versions installed here."""
READS = {"tokenizer.model": "sentencepiece", "tokenizer.json": "tokenizers"}
"""And the library that reads the checkpoint's tokenizer, by its file."""

SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec("string", "text")]),
    outputs=Schema(
        [
            ColSpec("string", "text"),
            ColSpec("string", "continuation"),
            ColSpec("double", "likelihood"),
            ColSpec("string", "quantity"),
        ]
    ),
    params=ParamSchema(
        [
            ParamSpec("max_new_tokens", DataType.long, 32),
            ParamSpec("temperature", DataType.double, 0.8),
            ParamSpec("seed", DataType.long, 0),
        ]
    ),
)


def log(checkpoint: Path, evidence: Sequence[Path], tags: dict[str, str]) -> dict[str, str]:
    """Log all that belongs to one version; returns its run's id and its model's URI."""
    with mlflow.start_run(run_name="register", tags=tags, log_system_metrics=False) as run:
        for file in evidence:
            mlflow.log_artifact(str(file), "evidence")
        info = mlflow.pyfunc.log_model(
            name=checkpoint.name,
            python_model=str(Path(__file__).with_name("serve.py")),
            artifacts={"checkpoint": str(checkpoint)},
            code_paths=[str(Path(plm_core.__file__).parent)],
            pip_requirements=requirements(checkpoint),
            signature=SIGNATURE,
            input_example=pd.DataFrame([{"text": "The state of the union is"}]),
        )
        mlflow.log_metrics(read_metrics(checkpoint.name, evidence), model_id=info.model_id)
    return {"run_id": run.info.run_id, "model_uri": info.model_uri}


def requirements(checkpoint: Path) -> list[str]:
    """What pip must install for a checkpoint to be used."""
    names = [*REQUIREMENTS, *(library for file, library in READS.items() if (checkpoint / file).is_file())]
    # The public version: a local part such as +cpu names a build that no index has.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def read_metrics(model: str, evidence: Sequence[Path]) -> dict[str, float]:
    """The numbers in the metrics files beside a model's evidence: ``evaluate-<model>.json``,
    ``finetune-<model>-<task>-<seed>.json``.

    Those of a task are means over its seeds, named ``<task>/<name>``, as in ``promotion.metrics``; ``score`` is the
    mean of the tasks'.
    """
    folder = evidence[0].parents[2] / "metrics"
    tasks = task_files(evidence[0].parent, {path.name for path in evidence})
    found = _numbers(folder / f"evaluate-{model}.json")
    for task, files in tasks.items():
        seeds = [_numbers(folder / f"finetune-{model}-{path.stem.replace('.', '-')}.json") for path in files]
        found |= {f"{task}/{name}": fmean(each[name] for each in seeds if name in each) for name in seeds[0]}
    scores = {task: read_task(files).value for task, files in tasks.items()}
    found |= {f"{task}/{SCORE}": value for task, value in scores.items()}
    return found | ({SCORE: fmean(scores.values())} if scores else {})


def _numbers(path: Path) -> dict[str, float]:
    """The numbers in a metrics file, if it is there."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Log a version from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.package", description="Log a checkpoint as an MLflow model.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--evidence", type=Path, nargs="+", required=True, help="its files")
    parser.add_argument("--tags", type=json.loads, default={}, help="tags of the run, as a JSON object")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file for the run's id and the model's URI")
    options = parser.parse_args(arguments)
    options.out.write_text(json.dumps(log(options.checkpoint, options.evidence, options.tags)))


if __name__ == "__main__":
    main()
