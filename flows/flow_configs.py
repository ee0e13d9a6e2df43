"""The sections of ``params.yaml`` that the flow itself reads, with every parameter checked.

Used by the modules of ``flows`` that use MLflow or notify people, and by ``plm gc``. The parameters of ``promotion``
that only the gate needs are checked by the gate.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from plm_core import config
from plm_core.shared import params_file
from plm_core.shared.errors import UserError
from plm_core.shared.options import NotifyConfig
from tasks.tracking.mlflow_stores import address

T = TypeVar("T")
Name = Annotated[str, Field(min_length=1)]
AtLeastOne = Annotated[int, Field(ge=1)]
DAY_S = 86400.0


@config.section
class Tracking:
    """The section ``tracking``."""

    uri: Name
    """MLflow's store: a server's address, or ``sqlite:///path``, with a path relative to the checkout.
    ``MLFLOW_TRACKING_URI`` overrides it."""
    experiment: Name
    """The experiment of all runs; the decisions on champions are in ``<experiment>-decisions``."""


@config.section
class Promotion:
    """The section ``promotion``, without the gate's parameters (``plm_core/evaluation/gate_rules.py``)."""

    registered_model: str
    """The name of the registered model; every model of this pipeline becomes a version of it."""

    def __post_init__(self) -> None:
        if not self.registered_model or {*self.registered_model} & {*"/:"}:
            raise ValueError(f"registered_model: found {self.registered_model!r}; expected a name without / and :")


@config.section
class Retention:
    """The section ``retention``: what ``plm gc``, and the last step of each scheduled run, keep."""

    versions: AtLeastOne
    """This many of the newest model versions are kept. Versions with an alias or the tag ``keep``, and those of the
    checkpoints in the checkout, are kept too."""
    champions: AtLeastOne
    """This many of the last champions in the ledger are kept: ``plm rollback`` goes back to them."""
    days: AtLeastOne
    """Deleted after this many days: cached files needed by neither the current ``dvc.lock`` nor one committed in those
    days; runs deleted in MLflow; compiled code that nobody has read; and Prefect's flow runs with their logs."""
    snapshots_days: AtLeastOne
    """The state of an unfinished training run is kept this long so that it can resume, and so is its journal once
    sent."""
    remote: bool = False
    """Whether to delete files from DVC's remote, and from a cache outside the checkout, as well. Set this only if no
    other checkout uses them."""


def read_tracking(root: Path) -> tuple[Tracking, Promotion]:
    """Read both sections of the ``params.yaml`` in the repository ``root``. Raises UserError: the file, a section or a
    parameter is missing, unknown or wrong."""
    tracking = read_section(root, Tracking, "tracking")
    promotion = params_file.read("promotion", root)
    if isinstance(promotion, dict):
        promotion = {name: value for name, value in promotion.items() if name == "registered_model"}
    promotion = config.from_dict(Promotion, promotion, "promotion")
    return replace(tracking, uri=address(root)[0]), promotion


def read_retention(root: Path) -> Retention | None:
    """Read the section ``retention``; None if there is none, and then nothing is ever deleted. Raises UserError: the
    file, the section or a parameter is missing, unknown or wrong."""
    return read_section(root, Retention, "retention") if "retention" in params_file.sections(root) else None


def read_section(root: Path, cls: type[T], name: str) -> T:
    """A section of the ``params.yaml`` in the repository ``root``. Raises UserError: the file, the section or a
    parameter is missing, unknown or wrong."""
    return config.from_dict(cls, params_file.read(name, root), name)


def read_notify(root: Path) -> NotifyConfig:
    """Read the section ``notify``; its defaults if it is wrong, since that may be the very problem to report."""
    try:
        return read_section(root, NotifyConfig, "notify")
    except UserError:
        return NotifyConfig()
