"""A checkpoint as a model of MLflow: what it consists of, and the columns of its requests and answers.

The code that serves it is ``tasks/commands/serve.py``.
"""

import logging
import os
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow.pyfunc
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.models.model import ModelInfo
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array

import plm_core
from plm_core import checkpoint
from plm_core.config import UserError, from_dict
from plm_core.configs.checkpoint_description import read_description
from plm_core.finetuning.task_model import LearnedTask
from plm_core.shared.options import SamplingConfig

REQUIREMENTS = ("mlflow", "numpy", "pandas", "pydantic", "safetensors", "torch")
"""What ``serve.py`` and the core need to use a checkpoint; pinned to the versions installed here."""
FINE_TUNED = ("pyarrow", "zstandard")
"""What a fine-tuned one needs in addition."""
READS = {"tokenizer.model": "sentencepiece", "tokenizer.json": "tokenizers"}
"""The library that reads the checkpoint's tokenizer, by the tokenizer's file; it too must be installed."""
TYPES: dict[str, Array | DataType] = {
    "text": DataType.string,
    "texts": Array(DataType.string),
    "number": DataType.double,
    "numbers": Array(DataType.double),
}
TEXT = "The state of the union is"
"""Each text of the example of a request."""


def model_parts(folder: Path) -> dict[str, Any]:
    """The arguments of ``mlflow.pyfunc``'s functions for a checkpoint."""
    columns = signature(folder)
    head = read_description(folder).head
    choices = [TEXT] * len(head["task"]["labels"]) if head else []
    row = {column.name: TEXT if column.type == DataType.string else choices for column in columns.inputs}
    example = pd.DataFrame([row])
    return {
        "python_model": str(Path(__file__).parents[1] / "commands/serve.py"),
        "artifacts": {"checkpoint": str(folder)},
        "code_paths": [str(Path(plm_core.__file__).parent)],
        "pip_requirements": requirements(folder),
        "signature": columns,
        "input_example": (example, {"max_new_tokens": 8}) if columns.params else example,
    }


def log_model(checkpoint_folder: Path) -> ModelInfo:
    """Log a checkpoint as a model of the active run. ``mlflow.pyfunc.log_model`` would load it and answer the example;
    registration does that later, in a process of its own."""
    flavor = SimpleNamespace(save_model=lambda validate_serving_input, **parts: mlflow.pyfunc.save_model(**parts))
    parts = model_parts(checkpoint_folder)
    return Model.log(None, flavor, name=checkpoint_folder.name, validate_serving_input=False, **parts)


def save_model(checkpoint_folder: Path, target: Path) -> None:
    """Write a checkpoint as a folder for ``mlflow models serve`` or ``mlflow.pyfunc.load_model``.

    Raises:
        UserError: the checkpoint is damaged, or ``target`` is not empty.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is not empty; expected an empty or a new folder")
    checkpoint.describe(checkpoint_folder)  # verified once, here: its files are large
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"  # four files of this machine are copied
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
    mlflow.pyfunc.save_model(str(target), **model_parts(checkpoint_folder))


def signature(folder: Path) -> ModelSignature:
    """The columns of a request and of its answer, and the request's parameters with their defaults."""
    head = read_description(folder).head
    if head is not None:
        learned = from_dict(LearnedTask, head, f"{folder / checkpoint.CONFIG_FILE}: head")
        return ModelSignature(inputs=_schema(learned.request()), outputs=_schema(learned.response()))
    defaults = SamplingConfig()
    params = [
        ParamSpec("max_new_tokens", DataType.long, defaults.max_new_tokens),
        ParamSpec("temperature", DataType.double, defaults.temperature),
        ParamSpec("seed", DataType.long, defaults.seed),
    ]
    answer = {"text": "text", "continuation": "text", "likelihood": "number", "quantity": "text"}
    return ModelSignature(_schema({"text": "text"}), _schema(answer), ParamSchema(params))


def _schema(columns: dict[str, str]) -> Schema:
    return Schema([ColSpec(TYPES[kind], name) for name, kind in columns.items()])


def requirements(folder: Path) -> list[str]:
    """What pip must install for a checkpoint to be used."""
    libraries = [library for file, library in READS.items() if (folder / file).is_file()]
    names = [*REQUIREMENTS, *libraries, *(FINE_TUNED if read_description(folder).head else ())]
    # The public version: a local part such as +cpu names a build that no index has.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]
