"""What a model is trained to do, one file an objective. ``OBJECTIVES`` names them.

An objective turns rows of tokens into a batch, and a model and a batch into a loss: it knows nothing of layers, and the
model knows nothing of targets.
"""

from plm_core.objectives.causal import Causal
from plm_core.objectives.loss import Objective

OBJECTIVES: dict[str, Objective] = {"causal": Causal()}
