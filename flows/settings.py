"""The sections of ``params.yaml`` that belong to the flow: ``tracking`` and ``promotion``, read strictly.

Used by the modules of ``flows`` that talk to MLflow. What the gate alone needs of ``promotion`` it checks itself.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.outcome import UserError
from plm_core.shared.stores import absolute


@dataclass(frozen=True)
class Tracking:
    """The section ``tracking``."""

    uri: str
    """MLflow's store, absolute: a server's address, or ``sqlite:////path``. ``MLFLOW_TRACKING_URI`` overrides it."""
    experiment: str
    """The experiment of all runs; the decisions on champions are kept in ``<experiment>-decisions``."""


@dataclass(frozen=True)
class Promotion:
    """The section ``promotion``."""

    registered_model: str
    """The name in the registry under which every model of this pipeline is a version."""


def read(root: Path) -> tuple[Tracking, Promotion]:
    """Read both sections of the ``params.yaml`` in the repository ``root``.

    Raises:
        UserError: the file, a section or a parameter is missing, unknown or wrong.
    """
    path = root / "params.yaml"
    try:
        sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}; expected a YAML file") from error
    tracking = _section(sections, "tracking", {"uri", "experiment"})
    promotion = _section(sections, "promotion", {"registered_model", "primary", "alpha", "margin", "metrics"})
    uri = os.environ.get("MLFLOW_TRACKING_URI") or _text(tracking, "tracking.uri")
    return (
        Tracking(absolute(uri, root), _text(tracking, "tracking.experiment")),
        Promotion(_text(promotion, "promotion.registered_model")),
    )


def _section(sections: Any, name: str, keys: set[str]) -> Mapping[str, Any]:
    section = sections.get(name) if isinstance(sections, Mapping) else None
    if not isinstance(section, Mapping):
        raise UserError(f"{name}: found {section!r}; expected a section with the keys {', '.join(sorted(keys))}")
    for key in section:
        if key not in keys:
            raise UserError(f"{name}.{key}: unknown parameter; expected one of {', '.join(sorted(keys))}")
    for key in sorted(keys):
        if key not in section:
            raise UserError(f"{name}.{key}: missing; expected it beside {', '.join(map(str, section))}")
    return section


def _text(section: Mapping[str, Any], where: str) -> str:
    value = section[where.rpartition(".")[2]]
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: found {value!r}; expected text")
    return value
