"""Snapshots: the private state from which an interrupted run goes on, to the same last byte.

Kept outside the outputs of the stage (DVC deletes those before a run), in a folder named by the digest of all that
the result depends on: a changed parameter, input or source file never resumes another run's state. Randomness is a
function of (seed, step) and the order of the data too, so weights, optimizer moments, what a model with memory
carries from batch to batch, and the reports so far are the whole state.
"""

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from plm_core.config import BadInput
from plm_core.files import atomic_folder, verify_checksums
from plm_core.objectives.loss import Carry
from plm_core.training.optimizer import Optimizer

STATE_FILE = "state.safetensors"
BEST_FILE = "best.safetensors"
PROGRESS_FILE = "progress.json"


@dataclass(frozen=True)
class Progress:
    """The part of the state that is not tensors."""

    step: int
    """Steps done."""
    best_step: int
    """The step of the best validation so far; 0 for none yet."""
    reports: list[dict[str, float | int | None]]
    """The reports so far."""


class Snapshots:
    """The snapshot folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        best: dict[str, torch.Tensor],
        carries: list[Carry | None],
        progress: Progress,
    ) -> None:
        """Replace the snapshot by this state; a crash in the middle leaves the one before or the new one, whole."""
        with atomic_folder(self.folder / "last") as temporary:
            save_file(_flatten(model, optimizer, carries), temporary / STATE_FILE)
            save_file(best, temporary / BEST_FILE)
            (temporary / PROGRESS_FILE).write_text(json.dumps(vars(progress)))

    def load(
        self, model: nn.Module, optimizer: Optimizer, parts: int
    ) -> tuple[Progress, dict[str, torch.Tensor], list[Carry | None]] | None:
        """Put the saved state into the model and its optimizer; None when there is no snapshot that can be used.

        Returns the progress, the best weights, and what each of ``parts`` parts of a batch carries on.

        A damaged snapshot is removed with a warning, and the run goes on from the one before or begins anew.
        """
        for folder in (self.folder / "last", *sorted(self.folder.glob(".last.*.old"))):
            if not folder.exists():
                continue
            try:
                verify_checksums(folder)
            except BadInput as error:
                warnings.warn(f"snapshot not used: {error}", stacklevel=2)
                shutil.rmtree(folder)
                continue
            carries = _unflatten(load_file(folder / STATE_FILE), model, optimizer, parts)
            progress = Progress(**json.loads((folder / PROGRESS_FILE).read_text()))
            return progress, load_file(folder / BEST_FILE), carries
        return None

    def remove(self) -> None:
        """Delete the folder: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _flatten(model: nn.Module, optimizer: Optimizer, carries: list[Carry | None]) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.tensors().items()}
    for part, carry in enumerate(carries):
        tensors |= {f"carry.{part}.{place}": tensor for place, tensor in enumerate(carry or ())}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _unflatten(
    tensors: dict[str, torch.Tensor], model: nn.Module, optimizer: Optimizer, parts: int
) -> list[Carry | None]:
    """Fill the model and its optimizer; returns what each of ``parts`` parts of a batch carries on."""
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    optimizer.restore({n.removeprefix("optimizer."): t for n, t in tensors.items() if n.startswith("optimizer.")})
    device = next(model.parameters()).device
    sizes = [sum(name.startswith(f"carry.{part}.") for name in tensors) for part in range(parts)]
    return [
        tuple(tensors[f"carry.{part}.{place}"].to(device) for place in range(size)) if size else None
        for part, size in enumerate(sizes)
    ]
