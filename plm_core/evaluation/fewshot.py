"""Zero-, one- and few-shot evaluation: a task's test examples as prompts, a causal model's answers, and their scores.

Used by the stage fewshot. What a prompt says is in ``benchmarks/prompts.py``, which answered examples precede it in
``benchmarks/shots.py``, how likely an option is in ``options.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.prompts import Prompt
from plm_core.benchmarks.shots import Shots
from plm_core.benchmarks.task import GlueTask
from plm_core.checkpoint import Loaded
from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Answers, score_by_subset
from plm_core.evaluation.options import RULES, SEAM, Question, chosen, question, ranker_of

COLUMNS = ("id", "sha256", "subset", "label", "prediction", *list(RULES)[1:], "shots", "cut", "overlap")
"""The columns of a file with one row per example: ``prediction`` is by the sum, the next ones by the other rules."""


@dataclass(frozen=True)
class Asked:
    """A task with its prompt."""

    task: GlueTask
    prompt: Prompt
    test: list[Example]
    overlaps: list[float]
    """The share of each test example's n-grams that occurs in the training text."""
    train: list[Example]
    """The examples that shots are drawn from."""
    seed: int
    """The seed for drawing shots."""
    words: int | None
    """At most this many words of each text are shown; None: all."""

    def options(self, example: Example) -> tuple[str, ...]:
        """The possible answers to the example, in the order of the class ids."""
        return example.choices or tuple(self.prompt.options[label] for label in self.task.labels)

    def ask(self, example: Example) -> str:
        """The example's prompt."""
        return self.prompt.ask(example, self.words)

    def show(self, example: Example) -> str:
        """The example as a shot: its prompt with the right answer."""
        return self.ask(example) + SEAM + self.options(example)[int(example.label)]


@dataclass(frozen=True)
class Answer:
    """A model's answer to a test example."""

    example: Example
    said: dict[str, int]
    """The class by each of ``RULES``."""
    shots: int
    """The number of shots that the context had room for."""
    cut: bool
    """Whether some of the example's own text was left out."""
    overlap: float


def answers(asked: Asked, shots: int, loaded: Loaded, device: torch.device) -> list[Answer]:
    """A model's answer to each test example after at most ``shots`` shots, in order.

    Raises:
        UserError: an option is longer than the model's context, or two are the same to its tokenizer.
    """
    read, alone = _questions(asked, shots, loaded)
    likelihoods = ranker_of(loaded.config.objective)
    found = likelihoods(loaded.model, read, device)
    by_itself = dict(zip(alone, likelihoods(loaded.model, list(alone.values()), device), strict=True))
    told = []
    for example, asking, given, overlap in zip(asked.test, read, found, asked.overlaps, strict=True):
        options = asked.options(example)
        said = chosen(options, given, by_itself[options].nats)
        cut = asking.cut or asked.ask(example) != asked.prompt.ask(example)
        told.append(Answer(example, said, asking.shots, cut, overlap))
    return told


def _questions(asked: Asked, shots: int, loaded: Loaded) -> tuple[list[Question], dict[tuple[str, ...], Question]]:
    """Each test example's question, and by options the question without any text."""
    pool = Shots(asked.train, asked.seed)
    ask = partial(question, loaded.tokenizer, context=loaded.model.config.context)
    try:
        different = dict.fromkeys(map(asked.options, asked.test))
        alone = {options: ask(asked.prompt.ending, options) for options in different}
        read = [
            ask(asked.ask(example), asked.options(example), shots=[asked.show(s) for s in pool.draw(example, shots)])
            for example in asked.test
        ]
    except ValueError as error:
        raise UserError(f"fewshot.tasks: {asked.task.name}: {error}") from error
    for options, by_itself in alone.items() if asked.prompt.options else ():
        for i, tokens in enumerate(by_itself.options):
            if tokens in by_itself.options[:i]:
                raise UserError(
                    f"fewshot.prompts.{asked.task.name}.options: to the model's tokenizer {options[i]!r} is the same "
                    "as another option; expected other words"
                )
    return read, alone


def measured(asked: Asked, shots: int, found: Sequence[Answer], contaminated: float | None) -> dict[str, float]:
    """The figures of a task with this number of shots.

    ``score`` is the task's own, by the sum; ``score_<rule>`` is by another rule; ``_low`` and ``_high`` are the ends of
    its 95 % interval (bootstrap over examples). ``baseline`` always answers the training set's most frequent class.
    These leave out the ``excluded`` examples, whose overlap with the training text is at least ``contaminated`` (None:
    none); those that begin with ``all_`` do not. If every example is left out, there is no score.

    ``examples`` counts those that are left; of these ``fewer_shots`` have fewer shots than asked for, ``no_shot`` have
    none, and ``cut`` are not shown whole.
    """
    clean = [each for each in found if contaminated is None or each.overlap < contaminated]
    figures: dict[str, float] = {
        "examples": len(clean),
        "excluded": len(found) - len(clean),
        "fewer_shots": sum(each.shots < shots for each in clean),
        "no_shot": sum(each.shots < min(1, shots) for each in clean),
        "cut": sum(each.cut for each in clean),
    }
    majority = int(np.bincount([int(example.label) for example in asked.train]).argmax())
    for begin, some in (("", clean), ("all_", found)):
        if not some:
            continue
        for rule in RULES:
            key = f"{begin}score" if rule == "sum" else f"{begin}score_{rule}"
            results = _results(asked.task, some, [each.said[rule] for each in some])
            figures[key] = score_by_subset(results)[""]
            if not begin:
                interval = significance.interval_of(results)
                figures |= {f"{key}_low": interval.low, f"{key}_high": interval.high}
        figures[f"{begin}baseline"] = score_by_subset(_results(asked.task, some, [majority] * len(some)))[""]
    return figures


def rows(task: GlueTask, found: Sequence[Answer]) -> list[tuple[object, ...]]:
    """The answers as rows of ``COLUMNS``, classes by name."""
    return [
        (
            each.example.id,
            each.example.sha256,
            each.example.subset,
            task.labels[int(each.example.label)],
            *(task.labels[each.said[rule]] for rule in RULES),
            each.shots,
            int(each.cut),
            repr(each.overlap),
        )
        for each in found
    ]


def _results(task: GlueTask, some: Sequence[Answer], said: Sequence[int]) -> Answers:
    subsets, strata = np.unique([each.example.subset for each in some], return_inverse=True)
    _, groups = np.unique([each.example.group or each.example.id for each in some], return_inverse=True)
    labels = np.array([int(each.example.label) for each in some])
    return Answers(task.score, labels, np.array([said]), strata, task.labels, tuple(map(str, subsets)), groups)
