"""A section of ``pretrain``, and all of it that can be checked without data and without torch: by stage and check."""

from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from plm_core.config import UserError, from_dict, section
from plm_core.objectives import build_objective
from plm_core.sections.models import MODELS, shape
from plm_core.training.config import LoopConfig
from plm_core.training.sizes import sized
from tasks.settings import params


@section
class StartConfig:
    """Section ``pretrain.<name>.start``: the digest makes it a decision that DVC sees, not a folder that changes."""

    checkpoint: str
    """A checkpoint's folder, such as ``plm import`` leaves."""
    sha256: str
    """Its digest, as ``plm import`` prints it."""


@section
class PretrainConfig:
    """Section ``pretrain.<name>`` of the parameters."""

    architecture: str
    """A name in ``plm_core.sections.models.MODELS``."""
    objective: dict[str, Any]
    """``name``, one in ``plm_core.objectives.OBJECTIVES``, and that objective's own parameters."""
    model: dict[str, Any]
    """The architecture's configuration, without the vocabulary; ``preset`` names a published size to start from."""
    training: LoopConfig
    """The loop and its optimizer."""
    valid_windows: PositiveInt = 256
    """How many windows of the validation split choose the best checkpoint."""
    start: StartConfig | None = None
    """The checkpoint whose weights and tokenizer the training begins with; null to begin from random weights."""

    def __post_init__(self) -> None:
        if "vocab_size" in self.model:
            raise ValueError("model.vocab_size: comes from tokenizer.vocab_size; expected it to be left out")


def pretrain_section(name: str) -> PretrainConfig:
    """Section ``pretrain.<name>``, with what its ``size`` fills in."""
    section = f"pretrain.{name}"
    return from_dict(PretrainConfig, sized(params.read(section), section), section)


def require_start(config: PretrainConfig, section: str) -> None:
    """Raise UserError when the checkpoint to start from is not there."""
    if config.start and not Path(config.start.checkpoint).exists():
        where = f"{section}.start.checkpoint: {config.start.checkpoint}"
        raise UserError(f"{where} is missing; expected a checkpoint (`plm import`)")


def require_trainable(config: PretrainConfig, vocab_size: int, section: str) -> None:
    """Check all of a pretraining that needs no data.

    Raises:
        UserError: the section describes no model, or one that its objective does not train.
    """
    model = shape(config.architecture, config.model | {"vocab_size": vocab_size}, section)
    objective = build_objective(config.objective, f"{section}.objective")
    if (asked := config.objective["name"]) not in (able := MODELS[config.architecture].objectives):
        raise UserError(
            f"{section}.objective.name: {asked} does not train architecture {config.architecture}; expected "
            f"{' or '.join(able)}"
        )
    try:
        objective.require_fit(model)
    except ValueError as error:
        raise UserError(f"{section}.{error}") from error
