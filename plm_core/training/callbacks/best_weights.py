"""The weights of the best validation, which a run ends with."""

from torch import Tensor, nn

from plm_core.training.callbacks import Callback
from plm_core.training.device import on_host
from plm_core.training.ranks import Ranks


class BestWeights(Callback):
    """Copies of the weights: at first the initial ones, so that a run without a validation leaves those."""

    saved = ("best_step",)

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self.keep(0)

    def keep(self, step: int) -> None:
        """Keep the model's weights, which are those of this step (0 before the first validation)."""
        weights = self._model.state_dict()
        # Sharded weights stay sharded: gathering them would need the memory that sharding saves.
        self.weights = {n: w.clone() for n, w in weights.items()} if self._ranks.sharding else on_host(weights)
        """Never modified, only replaced: a snapshot may still be writing them."""
        self.best_step = step

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a snapshot."""
        return {f"best.{name}": tensor for name, tensor in self.weights.items()}
