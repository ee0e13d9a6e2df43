"""What a model is trained to do, one file per objective. ``OBJECTIVES`` is the only table of them.

An objective turns a token store into batches, and a model and a batch into a loss: it knows nothing of layers, and the
model knows nothing of targets. To add one, add a file here and a line below; its own scoring or decoding, if any, is a
file in the package for that.
"""

from plm_core.config import choose
from plm_core.objectives.bidirectional import Bidirectional
from plm_core.objectives.causal import Causal
from plm_core.objectives.hybrid import Hybrid
from plm_core.objectives.masked import Masked
from plm_core.objectives.objective import Objective, Quantity
from plm_core.objectives.permutation import Permutation
from plm_core.objectives.replaced import Replaced
from plm_core.objectives.span_corruption import SpanCorruption

OBJECTIVES: dict[str, type[Objective]] = {
    "bidirectional": Bidirectional,
    "causal": Causal,
    "hybrid": Hybrid,
    "masked": Masked,
    "permutation": Permutation,
    "replaced": Replaced,
    "span_corruption": SpanCorruption,
}

QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for objective in OBJECTIVES.values()
    for quantity in (objective.likelihood, *objective.beside)
}
"""All quantities measured for them, by name."""


def build_objective(section: object, where: str) -> Objective:
    """Build the objective that a section describes by its ``name`` and its parameters.

    Raises:
        UserError: the name or a parameter cannot be used; ``where`` opens the message.
    """
    return choose(OBJECTIVES, "name", section, where)
