"""What a fine-tuned model answered to the behavioural checks of its task, as CSV. Written by finetune."""

from collections.abc import Callable, Sequence
from pathlib import Path

from plm_core.benchmarks.checks import COLUMNS, FILE, counted, examined, read_checks
from plm_core.benchmarks.examples import Example, file_of, read_examples
from plm_core.benchmarks.task import GlueTask
from tasks.runtime.evidence import write_rows


def write_checked(
    path: Path,
    folder: Path,
    task: GlueTask,
    test: Sequence[Example],
    answers: Sequence[float],
    ask: Callable[[list[Example]], Sequence[float]],
) -> dict[str, int]:
    """Ask the checks in a folder of examples, write a row each, and return how many failed.

    ``answers`` are those to the test examples ``test``, which may be a sample; ``ask`` gives those to others.
    """
    known = (example.id for example in read_examples(file_of(folder, "test"), task))
    judged = examined(task, read_checks(folder / FILE, task, known), test, answers, ask)
    write_rows(path, COLUMNS, judged)
    return counted(judged)
