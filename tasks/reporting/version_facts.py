"""What is known of a model besides its evidence, for the run of its version in MLflow; what is missing is left out."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.configs.checkpoint_description import read_description
from plm_core.shared import paths
from plm_core.shared.files import sha256_path
from tasks.parameters import stage_parameters
from tasks.parameters.stage_parameters import labels
from tasks.reporting.training_costs import GIB, read

SIZES = ("parameters", "positions")
"""The metrics of a pretraining run that say how large a model is and how much it has read."""


@dataclass(frozen=True)
class Facts:
    """The content of a run; names are those of the stages' runs, so that MLflow can compare them."""

    tags: dict[str, str]
    params: dict[str, Any]
    """The device, and sections of ``params.yaml``; that of the model without its name."""
    metrics: dict[str, float]
    data: dict[str, str]
    """The sha256 of the splits of the corpus and of the examples of each task, by path."""
    files: dict[str, Path]
    """Files and folders, by the run's folder that they go into."""


def facts(model: str) -> Facts:
    """What is known of one of ``models``, in the project's folder."""
    splits = [paths.CORPUS / f"{name}.parquet" for name in ("train", "valid", "test")]
    inputs = [*filter(Path.exists, splits), *sorted(paths.EXAMPLES.glob("*"))]
    data = {path.as_posix(): sha256_path(path) for path in inputs}
    sections = {"pretrain": _section(f"pretrain.{model}"), "finetune": _section("finetune")}
    metrics: dict[str, float] = {}
    trained = paths.METRICS / f"pretrain-{model}.json"
    if trained.is_file():
        trained_metrics = json.loads(trained.read_text(encoding="utf-8"))
        metrics |= {name: trained_metrics[name] for name in SIZES if name in trained_metrics}
    taken = read(paths.METERS / f"pretrain-{model}.json")
    if taken is not None and taken.finished:
        sections["device"] = taken.device
        cost = {"seconds": taken.seconds, "joules": taken.joules, "cost": taken.cost}
        metrics |= {name: value for name, value in cost.items() if value is not None}
        metrics["peak_memory_gib"] = taken.peak_memory / GIB
    tags = labels(model, data)
    with contextlib.suppress(UserError):
        if (lineage := read_description(paths.MODELS / model).lineage) and lineage.ancestor:
            tags |= {"checkpoint.ancestor": lineage.ancestor, "checkpoint.nights": str(lineage.nights)}
    files = {"": paths.REPORT, "samples": paths.SAMPLES / f"{model}.json"}
    return Facts(
        tags,
        {name: section for name, section in sections.items() if section is not None},
        metrics,
        data,
        {folder: path for folder, path in files.items() if path.exists()},
    )


def _section(name: str) -> Any:
    with contextlib.suppress(UserError):
        return stage_parameters.read(name)
    return None
