"""What a model is trained to do, one file an objective. ``OBJECTIVES`` names them.

An objective turns a token store into batches, and a model and a batch into a loss: it knows nothing of layers, and the
model knows nothing of targets.
"""

from typing import Any

from plm_core.config import BadInput, from_dict
from plm_core.objectives.causal import Causal
from plm_core.objectives.loss import Objective
from plm_core.objectives.masked import Masked
from plm_core.objectives.permutation import Permutation

OBJECTIVES: dict[str, type[Any]] = {"causal": Causal, "masked": Masked, "permutation": Permutation}


def objectives_of(model: Any) -> list[str]:
    """The objectives that a model, or a class of models, can be trained by."""
    return [name for name, objective in OBJECTIVES.items() if all(hasattr(model, method) for method in objective.needs)]


def build_objective(section: dict[str, Any], where: str) -> Objective:
    """The objective that a section with its ``name`` and its parameters describes.

    Raises:
        BadInput: the name or a parameter cannot be used; ``where`` opens the message.
    """
    name = section.get("name")
    if name not in OBJECTIVES:
        raise BadInput(f"{where}.name: found {name!r}; expected one of {', '.join(OBJECTIVES)}")
    return from_dict(OBJECTIVES[name], {key: value for key, value in section.items() if key != "name"}, where)
