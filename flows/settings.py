"""The sections of ``params.yaml`` that belong to the flow: ``tracking``, ``promotion`` and ``notify``, read strictly.

Used by the modules of ``flows`` that talk to MLflow and to people. What the gate alone needs of ``promotion`` it
checks itself.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from flows.outcome import UserError
from plm_core import config
from plm_core.shared.notices import NotifyConfig
from plm_core.shared.stores import absolute

Name = Annotated[str, Field(min_length=1)]


@config.section
class Tracking:
    """The section ``tracking``."""

    uri: Name
    """MLflow's store, absolute: a server's address, or ``sqlite:////path``. ``MLFLOW_TRACKING_URI`` overrides it."""
    experiment: Name
    """The experiment of all runs; the decisions on champions are kept in ``<experiment>-decisions``."""


@config.section
class Promotion:
    """The section ``promotion``. All but the name is the gate's (``plm_core/evaluation/rules.py``), which checks it."""

    registered_model: Name
    """The name in the registry under which every model of this pipeline is a version."""
    primary: Any
    alpha: Any
    margin: Any
    metrics: Any


def read(root: Path) -> tuple[Tracking, Promotion]:
    """Read both sections of the ``params.yaml`` in the repository ``root``.

    Raises:
        UserError: the file, a section or a parameter is missing, unknown or wrong.
    """
    sections = _sections(root)
    try:
        tracking = config.from_dict(Tracking, sections.get("tracking"), "tracking")
        promotion = config.from_dict(Promotion, sections.get("promotion"), "promotion")
    except config.UserError as error:
        raise UserError(str(error)) from error
    return replace(tracking, uri=absolute(os.environ.get("MLFLOW_TRACKING_URI") or tracking.uri, root)), promotion


def notify(root: Path) -> NotifyConfig:
    """Read the section ``notify``; its defaults where it cannot be used, for that may be what is to be told."""
    try:
        return config.from_dict(NotifyConfig, _sections(root)["notify"], "notify")
    except (KeyError, UserError, config.UserError):
        return NotifyConfig()


def _sections(root: Path) -> dict[str, Any]:
    path = root / "params.yaml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}; expected a YAML file") from error
    return found if isinstance(found, dict) else {}
