"""The examples that a step of fine-tuning reads: batches of similar length, to reduce padding.

Used by the finetune stage.
"""

from collections.abc import Sequence

import numpy as np

from plm_core.text.samplers import epoch_order, stream_seed

POOL = 50
"""The number of batches whose examples are sorted by length together, as in the LengthGroupedSampler of transformers:
with more, lengths within a batch are more similar, and batches less random."""


class Batching:
    """Epochs over examples, each read at most once per epoch; a random remainder that fills no batch is skipped.

    If there are fewer examples than a batch holds, they are repeated in it.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        """``lengths`` are those of the examples, in tokens; ``batch`` is the number of examples a step reads."""
        self._lengths = np.asarray(lengths)
        self._batch = batch
        self._seed = seed
        self.epoch = max(1, len(lengths) // batch)
        """The steps of an epoch."""
        self._plan: tuple[int, list[np.ndarray]] = (-1, [])

    def at(self, step: int) -> np.ndarray:
        """The examples ``[batch]`` that a step (from 0) reads: a pure function of seed and step."""
        epoch, place = divmod(step, self.epoch)
        if self._plan[0] != epoch:
            self._plan = (epoch, self._batches(epoch))
        return self._plan[1][place]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        order = np.resize(epoch_order(self._seed, epoch, len(self._lengths)), self.epoch * self._batch)
        pools = [order[start : start + POOL * self._batch] for start in range(0, len(order), POOL * self._batch)]
        alike = np.concatenate([pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools])
        batches = np.split(alike, self.epoch)
        return [batches[i] for i in epoch_order(stream_seed(self._seed, "batches"), epoch, self.epoch)]
