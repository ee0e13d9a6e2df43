"""What a model is trained to do, one file an objective. ``OBJECTIVES`` names them.

An objective turns a token store into batches, and a model and a batch into a loss: it knows nothing of layers, and the
model knows nothing of targets.
"""

from typing import Any

from plm_core.objectives.causal import Causal
from plm_core.objectives.loss import Objective
from plm_core.objectives.masked import Masked
from plm_core.objectives.permutation import Permutation
from plm_core.sections.objectives import read_objective

OBJECTIVES: dict[str, type[Any]] = {"causal": Causal, "masked": Masked, "permutation": Permutation}


def build_objective(section: dict[str, Any], where: str) -> Objective:
    """The objective that a section with its ``name`` and its parameters describes.

    Raises:
        BadInput: the name or a parameter cannot be used; ``where`` opens the message.
    """
    return read_objective(section, OBJECTIVES, where)
