"""Snapshots: the private state from which an interrupted run resumes, byte for byte.

They are kept outside the outputs of the stage (DVC deletes those before a run). A snapshot is a folder
``step-00000100``: the tensors as torch.distributed.checkpoint writes them to safetensors (each process its shards, to
be read by any number of processes; no pickle), ``progress.json`` and ``SHA256SUMS``.
"""

import contextlib
import json
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from plm_core.config import UserError
from plm_core.shared.files import atomic_folder, verify_checksums
from plm_core.training.device import thread_beside
from plm_core.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint.staging import DefaultStager

PROGRESS_FILE = "progress.json"
FILE_BYTES = 1 << 26
"""The approximate size of a file, which is assembled in memory."""


class NotSaved(OSError):
    """A snapshot could not be written."""


@dataclass(frozen=True)
class Saved:
    """A complete snapshot on the disk."""

    folder: Path
    progress: dict[str, Any]
    """The rest of the state, without tensors, as given to ``Snapshots.save``."""
    ranks: Ranks

    def shapes(self, prefix: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """The global shapes and dtypes of the tensors whose names begin with ``prefix``."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        metadata = HuggingFaceStorageReader(str(self.folder)).read_metadata().state_dict_metadata
        chosen = {name: cast(TensorStorageMetadata, m) for name, m in metadata.items() if name.startswith(prefix)}
        return {name: (m.size, m.properties.dtype) for name, m in chosen.items()}

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Copy the saved values into the tensors with the same names, sharded or not."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        reader = HuggingFaceStorageReader(str(self.folder))
        load(tensors, storage_reader=reader, process_group=self.ranks.control)


class Snapshots:
    """The snapshots of one run."""

    def __init__(self, folder: Path, keep: int = 2, ranks: Ranks = ALONE) -> None:
        self.folder = folder
        self._keep, self._ranks = keep, ranks
        # Shards are copied in the thread, which must wait for the GPU that holds them.
        self._thread = thread_beside("snapshot")
        self._writing: Future[None] | None = None
        self._stager: DefaultStager | None = None
        self._newest: tuple[int, int] | None = None
        """The step of the last snapshot begun, and the number of rollbacks before it."""
        # torch gives this warning whenever a single process saves or loads.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)

    def save(
        self, tensors: Mapping[str, Tensor], fixed: Mapping[str, Tensor], progress: Mapping[str, Any], every: int
    ) -> None:
        """Begin to write a snapshot of ``tensors``, copied now, and ``fixed``, which no longer change.

        ``progress`` is the rest of the state, as JSON: ``step``, ``rollbacks`` and whatever else belongs to it.
        Snapshots whose step is a multiple of ``every`` are periodic; the newest of them is kept as well. One that
        cannot be written causes a warning, and earlier ones stay: call ``wait`` to get an error. A state that was just
        saved is not written again.
        """
        step = progress["step"]
        if self._newest == (newest := (step, len(progress["rollbacks"]))):
            return
        self.settle()
        # Copied into reused buffers on the host, pinned if there is a GPU. The copy does not overlap with the next
        # step, which would change the weights: 1.5 GB take 25 ms over PCIe 5.0.
        live = {name: tensor.detach() for name, tensor in tensors.items()}
        self._stager = self._stager or _stager(torch.cuda.is_available())
        try:
            copied = self._stager.stage(live)
        except RuntimeError:  # the system does not allow this much pinned memory
            self._stager = _stager(False)
            copied = self._stager.stage(live)
        self._newest = newest
        everything = {**cast(dict[str, Tensor], copied), **fixed}
        self._writing = self._thread.submit(self._write, everything, step, json.dumps(progress), every)

    def wait(self) -> None:
        """Wait until the snapshot is on the disk.

        Raises:
            NotSaved: it could not be written; the message names the folder, the reason and the last good snapshot.
        """
        problem = self._result()
        failed = self._ranks.total(None if problem else 0.0) is None
        if failed:
            raise NotSaved(problem or f"{self.folder}: snapshot not written by another process")

    def find(self, at_most: int | None = None, every: int = 1) -> Saved | None:
        """The newest complete snapshot (of a step up to ``at_most`` that is a multiple of ``every``), or None. One that
        is damaged is removed with a warning, and the one before it is used."""
        self.settle()
        chosen = -1
        # One process chooses for all: while it cleans up, the others may see other folders.
        if self._ranks.first:
            # Left over from a crash: a partial snapshot, or one that was about to be replaced.
            for old in self.folder.glob(".step-*.old"):
                if not (self.folder / old.name.split(".")[1]).exists():
                    old.rename(self.folder / old.name.split(".")[1])
            for leftover in self.folder.glob(".step-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            for folder in reversed(self._folders()):
                step = _step(folder)
                if (at_most is not None and step > at_most) or step % every:
                    continue
                try:
                    verify_checksums(folder)
                except UserError as error:
                    warnings.warn(f"snapshot not used: {error}", stacklevel=2)
                    shutil.rmtree(folder)
                    continue
                chosen = step
                break
        chosen = int(self._ranks.broadcast(chosen))
        if chosen < 0:
            return None
        folder = self.folder / _name(chosen)
        return Saved(folder, json.loads((folder / PROGRESS_FILE).read_text()), self._ranks)

    def settle(self) -> None:
        """Wait for the writer thread; a failed snapshot becomes a warning."""
        if (problem := self._result()) is not None:
            warnings.warn(problem, stacklevel=3)

    def newest(self) -> Path | None:
        """The folder of the newest snapshot, complete or not; None if there is none."""
        self.settle()
        return next(reversed(self._folders()), None)

    def remove_after(self, step: int) -> None:
        """Delete the snapshots of later steps, which a rollback has invalidated."""
        self.settle()
        for folder in self._folders() if self._ranks.first else []:
            if _step(folder) > step:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Delete the folder: the run is done."""
        self.settle()
        if self._ranks.first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, tensors: dict[str, Tensor], step: int, progress: str, every: int) -> None:
        """Write a snapshot, in the thread; a crash in the middle leaves earlier snapshots intact."""
        from torch.distributed import broadcast_object_list
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        with contextlib.ExitStack() as stack:
            # The first process creates the folder and tells the others its path, or that it failed.
            where: list[Path | None] = [None]
            problem: OSError | None = None
            if self._ranks.first:
                try:
                    where = [stack.enter_context(atomic_folder(self.folder / _name(step)))]
                except OSError as error:
                    problem = error
            if self._ranks.size > 1:
                broadcast_object_list(where, 0, group=self._ranks.background)
            if where[0] is None:
                raise problem or NotSaved("the first process has no folder for it")
            # Tensors go to files of about equal size, in their order.
            ends = accumulate(tensor.nbytes for tensor in tensors.values())
            files = {name: 1 + end // FILE_BYTES for name, end in zip(tensors, ends, strict=True)}
            writer = HuggingFaceStorageWriter(str(where[0]), files, save_distributed=True)
            save(tensors, storage_writer=writer, process_group=self._ranks.background)
            if self._ranks.first:
                (where[0] / PROGRESS_FILE).write_text(progress)

        # All but the newest snapshots and the newest periodic one, which a rollback uses, are deleted.
        if self._ranks.first:
            folders = self._folders()
            periodic = [folder for folder in folders if _step(folder) % every == 0]
            for folder in folders[: -self._keep]:
                if folder not in periodic[-1:]:
                    shutil.rmtree(folder, ignore_errors=True)

    def _result(self) -> str | None:
        """Wait for the thread; return what went wrong, or None."""
        if self._writing is None:
            return None
        from torch.distributed.checkpoint.api import CheckpointException

        error = self._writing.exception()
        self._writing = None
        if error is None:
            return None
        if isinstance(error, CheckpointException):
            error = next(iter(error.failures.values()))[0]
        if not isinstance(error, (OSError, RuntimeError)):
            raise error
        good = next(reversed(self._folders()), None)
        kept = f"the last good one is {good}" if good else "there is no other"
        return f"{self.folder}: snapshot not written ({' '.join(str(error).split())}); {kept}"

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))


def _stager(pinned: bool) -> "DefaultStager":
    # Imported by the main thread: two threads that import at once can deadlock.
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(
        StagingOptions(pinned, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pinned)
    )


def _name(step: int) -> str:
    return f"step-{step:08}"


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
