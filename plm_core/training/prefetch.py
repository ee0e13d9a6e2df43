"""Batches prepared one step ahead in a separate thread, so that the loop does not wait for them. Used by the loop."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

import torch

from plm_core.objectives.loss import Batch
from plm_core.training.device import thread_beside


class Prefetch:
    """``batch_at`` that prepares the next step's batch in the background; for a GPU in pinned memory."""

    def __init__(self, batch_at: Callable[[int], Batch], device: torch.device) -> None:
        self._batch_at, self._device = batch_at, device
        self._thread = thread_beside("batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def __call__(self, step: int, last: bool = False) -> Batch:
        """Return the batch of a step, and start preparing that of ``step`` + 1 unless this is the ``last``.

        Exceptions of ``batch_at`` are raised here, at the step they belong to.
        """
        made = self._next[1] if self._next and self._next[0] == step else self._thread.submit(self._made, step)
        self._next = None if last else (step + 1, self._thread.submit(self._made, step + 1))
        return made.result()

    def _made(self, step: int) -> Batch:
        return self._batch_at(step).pinned(self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
