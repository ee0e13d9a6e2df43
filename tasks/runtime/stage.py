"""What surrounds every stage: errors, exit statuses, the provenance guard, the MLflow run, metrics, progress."""

import contextlib
import functools
import inspect
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from plm_core.config import UserError, digest
from plm_core.shared import environment, paths
from plm_core.shared.errors import BUDGET_SPENT, INTERRUPTED, USER_ERROR, is_out_of_memory, needs_less
from plm_core.shared.files import atomic_text, sha256_path
from plm_core.shared.gpu_claims import claimed
from tasks.parameters import stage_parameters
from tasks.parameters.environment_limits import leads
from tasks.parameters.stage_parameters import labels
from tasks.runtime.provenance_guard import Guard
from tasks.tracking.tracker import Tracker, tracked

Item = TypeVar("Item")

OF_A_GPU = (
    "CUDA error", "CUDA out of memory", "No CUDA GPUs", "[CUDA]", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error",
    "cudaGetDeviceCount", "NCCL error",
)  # fmt: skip
"""What the first line of a GPU's error contains; torch raises most of them as a plain RuntimeError."""
LINE_EVERY_S = 5.0
"""The least number of seconds between two lines of progress."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the stage to end, and its state is saved."""


class BudgetSpent(UserError):
    """A training run has used up its budget, and its state is saved."""


@dataclass
class Stage:
    """A stage while it runs."""

    name: str
    """Its name in ``dvc.yaml``, with its key: ``pretrain-gpt``."""
    tracker: Tracker
    guard: Guard
    inputs: dict[str, str]
    """The sha256 of each input."""
    metrics: dict[str, float | int] = field(default_factory=dict)
    """Its results: numbers that are a function of its inputs, written to its metrics file at the end."""
    outputs: list[Path] = field(default_factory=list)
    """The files and folders that it wrote."""


@contextlib.contextmanager
def stage(
    name: str,
    sections: Sequence[str],
    inputs: Sequence[Path],
    metrics: bool = True,
    training: bool = False,
    filled: Mapping[str, object] | None = None,
    model: str = "",
    tags: Mapping[str, str] | None = None,
) -> Iterator[Stage]:
    """Run the block as a stage: guarded, tracked, and with its ``metrics`` written as JSON when it ends well.

    ``sections`` are the dotted sections of ``params.yaml`` that the result depends on. An interrupted ``training``
    continues in its MLflow run, as it does from its snapshot. ``filled`` are sections as completed by the stage, which
    MLflow shows. ``model`` is the one of ``models`` that it works on; ``tags`` are further tags of its run. Raises
    UserError: an input is missing, or something the result depends on was edited while the block ran.
    """
    for path in inputs:
        if not path.exists():
            raise stage_parameters.missing_input(path)
    guard = Guard(sections, inputs)
    digests = {path.as_posix(): sha256_path(path) for path in inputs}
    same = digest(name, guard.sections, digests, guard.code) if training else None
    # Runs of two models are compared by parameters of equal names.
    complete = guard.sections | dict(filled or {})
    shown = {section.removesuffix(f".{model}"): value for section, value in complete.items()}
    with tracked(name, shown, digests, same, labels(model, digests) | dict(tags or {})) as tracker:
        running = Stage(name, tracker, guard, digests)
        yield running
        tracker.summary(running.metrics)
        tracker.outputs({path.as_posix(): sha256_path(path) for path in running.outputs})
        guard.check()
        if metrics and leads():
            text = json.dumps(running.metrics, indent=2, allow_nan=False) + "\n"
            atomic_text(paths.METRICS / f"{name}.json", text)


def main(task: Callable[..., None], gpus: int | Callable[[], int] = 0) -> None:
    """Run a task as a process: its one-line error and its exit status are the contract with whoever started it.

    The task's signature is the command line. It sees as many GPUs as ``gpus`` says, and has them to itself; users who
    start torchrun themselves also divide the GPUs themselves. What torch compiles is kept in ``artifacts/``.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.COMPILED.resolve()))
    # Python's own format has two lines, and one of them is code.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"

    @functools.wraps(task)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            environment.prepare()
            wanted = 0 if "RANK" in os.environ else gpus if isinstance(gpus, int) else gpus()
            with claimed(wanted, lambda message: print(message, file=sys.stderr, flush=True)):
                task(*arguments, **options)
        except BudgetSpent as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            sys.exit(BUDGET_SPENT)
        except (UserError, OSError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            sys.exit(USER_ERROR if isinstance(error, UserError) else 1)
        except (MemoryError, RuntimeError) as error:
            if (message := _of_the_machine(error, "@".join([Path(sys.argv[0]).stem, *words[:1]]))) is None:
                raise
            print(f"error: {message}", file=sys.stderr, flush=True)
            sys.exit(1)
        except KeyboardInterrupt as error:
            print(f"interrupted: {error}", file=sys.stderr, flush=True)
            sys.exit(INTERRUPTED)

    words = sys.argv[1:]
    parameters = inspect.signature(task).parameters.values()
    required = [parameter.annotation for parameter in parameters if parameter.default is parameter.empty]
    if not parameters:
        run()
    elif required == [str] * len(words) and not any(word.startswith("-") for word in words):
        run(*words)  # as in dvc.yaml; typer would take a tenth of a second to do the same
    else:
        import typer

        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
        app.command(help=inspect.cleandoc(task.__doc__ or "").partition("\nRaises:")[0])(run)
        app()


def _of_the_machine(error: Exception, stage: str) -> str | None:
    """What the machine lacked when a stage failed, and what to do; None if the machine is not the cause."""
    # What follows CUDA's first line is advice for programmers.
    reason = (str(error).splitlines() or ["no message"])[0]
    gpu = any(name in reason for name in OF_A_GPU)
    if is_out_of_memory(error):
        return f"out of memory: {reason}; {needs_less(stage, gpu)}"
    # A failed assertion in a kernel, such as an index out of range, is a defect: it needs the whole traceback.
    if gpu and "assert" not in reason:
        return (
            f"the GPU failed: {reason}; expected one that works (nvidia-smi lists them, CUDA_VISIBLE_DEVICES chooses "
            "among them); training resumes from its last snapshot"
        )
    if type(error).__name__ == "InductorError":  # torch's, which is not imported for this
        return f"training.compile: {reason}; expected a working C++ compiler (such as g++), or compile: false"
    return None


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM or SIGINT has arrived; a second signal ends the process at once."""
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        for deferred in before:
            signal.signal(deferred, signal.SIG_DFL)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Progress:
    """Prints how much of ``total`` is done, and how long the rest will take."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._start = self._last = monotonic()
        self._before = 0

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Count the items. They may come in groups, so the first, which took as long as its whole group, does not count
        in the estimate of the time left."""
        for done, item in enumerate(items, 1):
            if done == 1:
                self.resume(1)
            self.update(done)
            yield item

    def resume(self, done: int) -> None:
        """``done`` of the total were done before now, and do not count in the estimate of the time left."""
        self._start = self._last = monotonic()
        self._before = done

    def update(self, done: int, note: str = "") -> None:
        """Print that ``done`` of the total is done, with a note, unless a line was printed just before."""
        now = monotonic()
        if leads() and (done == self._total or now - self._last >= LINE_EVERY_S):
            self._last = now
            left = (now - self._start) * (self._total - done) / max(1, done - self._before)
            share = f"{done}/{self._total} ({done / self._total:.0%})"
            print(f"{self._what}: {share}, {left:.0f} s left  {note}", flush=True)
