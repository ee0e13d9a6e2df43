"""The table of GLUE-like tasks: a task is a row. Read by the finetune stage and the report."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plm_core.config import BadInput
from plm_core.corpus.document import Document
from plm_core.finetuning.examples import Example, eras, next_paragraphs

CLASSIFICATION = ("accuracy", "macro_f1", "matthews")


@dataclass(frozen=True)
class GlueTask:
    """A row."""

    question: str
    """What the classes answer, for the report."""
    labels: tuple[str, ...]
    """The classes, in the order of their ids."""
    metrics: tuple[str, ...]
    """Names in ``plm_core.evaluation.metrics.METRICS``."""
    examples: Callable[[Sequence[Document]], Iterator[Example]]
    """The examples that the documents of one split give."""


TASKS: dict[str, GlueTask] = {
    "sotu-era": GlueTask(
        question="When was the paragraph spoken: before 1865, 1865 to 1944, or from 1945 on?",
        labels=("before-1865", "1865-1944", "from-1945"),
        metrics=CLASSIFICATION,
        examples=eras,
    ),
    "sotu-next": GlueTask(
        question="Does paragraph B follow paragraph A in the same speech?",
        labels=("other", "next"),
        metrics=CLASSIFICATION,
        examples=next_paragraphs,
    ),
}


def task_of(name: str) -> GlueTask:
    """The row of this name; BadInput for an unknown one."""
    if name not in TASKS:
        raise BadInput(f"finetune.tasks: found {name!r}; expected names among {', '.join(TASKS)}")
    return TASKS[name]
