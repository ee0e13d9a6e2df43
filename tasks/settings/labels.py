"""The tags by which runs and versions are found in MLflow. Used by every stage, and when a version is made."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from plm_core.config import UserError, digest
from plm_core.shared import paths
from tasks.settings import params

MADE = (paths.MODELS, paths.FINETUNED, paths.TOKENIZER)
"""Inputs that are not data."""


def labels(model: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """The tags of a run with these inputs (sha256 by path), on one of ``models`` unless that is empty.

    ``plm.data`` is a digest: if it is equal, the same data was read.
    """
    data = {path: of for path, of in inputs.items() if not any(map(Path(path).is_relative_to, MADE))}
    found = {"plm.data": digest(data)[:12]} if data else {}
    found |= {"plm.model": model} if model else {}
    with contextlib.suppress(UserError, KeyError, TypeError):  # a broken section is reported where it is used
        section = params.read(f"pretrain.{model}")
        found |= {"plm.architecture": str(section["architecture"]), "plm.objective": str(section["objective"]["name"])}
    return found
