"""Zero-, one- and few-shot evaluation: a task's test examples as prompts, a causal model's answers, and their scores.

The answer is the option with the highest log p(option | prompt), summed over its tokens (Radford et al. 2019, section
3; Brown et al. 2020, section 2.4). Prompt and option are one text to the tokenizer, as in lm-evaluation-harness's
``_encode_pair``, so that the model sees the tokens that it was trained on.

Shapes: B rows, T positions, N predictions, D width, V vocabulary, K options.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.prompts import SEAM, Prompt, Shots
from plm_core.benchmarks.task import GlueTask
from plm_core.checkpoint import Loaded
from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Answers, score_by_subset
from plm_core.objectives import OBJECTIVES
from plm_core.text.tokenizers import EOS, PAD, Tokenizer

ROWS = 32
"""Rows per batch."""
BETWEEN_SHOTS = "\n\n"
"""What follows each shot, as between paragraphs."""
RULES = ("sum", "per_byte", "per_token", "unconditional")
"""The rules for the choice: the option with the highest value is the answer, the first one if several are equal.

* ``sum``: the likelihood itself, ``acc`` of lm-evaluation-harness; it favours short options.
* ``per_byte``: divided by the option's length in bytes, whatever the tokenizer; the harness's ``acc_norm`` counts
  characters, which is the same for ASCII.
* ``per_token``: divided by the number of tokens (Brown et al. 2020, section 2.4).
* ``unconditional``: p(option | prompt) / p(option | answer context) (Brown et al. 2020, section 2.4): what the texts
  add. The answer context is what the template has after its last text, as in the domain-conditional PMI of Holtzman et
  al. 2021, "Surface Form Competition", equation 3.
"""
COLUMNS = ("id", "sha256", "subset", "label", "prediction", *RULES[1:], "shots", "cut", "overlap")
"""The columns of a file with one row per example: ``prediction`` is by the sum, the next ones by the other rules."""

# The options of one question, as tokens.


@dataclass(frozen=True)
class Question:
    """A prompt and its K options as tokens, and what was left out of the prompt."""

    prompt: list[int]
    """The prompt's tokens, without the EOS before them."""
    options: list[list[int]]
    """``[K]``: the tokens of each option, beginning with a space; none is empty."""
    shots: int = 0
    """How many of the shots are in the prompt."""
    cut: bool = False
    """Whether the beginning of the prompt was cut."""


def question(
    tokenizer: Tokenizer, prompt: str, options: Sequence[str], context: int, shots: Sequence[str] = ()
) -> Question:
    """The tokens of a prompt with its options, in a model's ``context``.

    ``shots`` are answered prompts, the nearest first. A prompt that is too long loses the farthest shots, then its own
    beginning: all options follow the same tokens.

    Raises:
        ValueError: an option has no token, or more than the context holds.
    """
    for held in range(len(shots), -1, -1):
        before = "".join(shot + BETWEEN_SHOTS for shot in reversed(shots[:held]))
        texts = [before + prompt, *(before + prompt + SEAM + option for option in options)]
        first, *rest = (tokenizer.encode(text) for text in texts)
        # Tokens of the prompt that change with an option count as part of every option, so that all options are
        # compared on the same text.
        differs = (i for i, tokens in enumerate(zip(first, *rest, strict=False)) if len(set(tokens)) > 1)
        shared = next(differs, min(map(len, (first, *rest))))
        common = first[:shared]
        answers = [ids[shared:] for ids in rest]
        room = context - max(map(len, answers))
        if len(common) <= room and all(answers):
            return Question(common, answers, held)
    if not all(answers):
        raise ValueError(f"the option {options[answers.index([])]!r} has no token; expected at least one")
    if room < 0:
        longest = options[max(range(len(options)), key=lambda i: len(answers[i]))]
        raise ValueError(
            f"the option {longest!r} has {context - room} tokens; expected at most {context}, the model's context"
        )
    return Question(common[len(common) - room :], answers, cut=True)


Ranker = Callable[[Any, Sequence[Question], torch.device], list[list[float]]]
"""From a model and questions to log p(option | prompt), at most 0, of each question's options, in order."""


@torch.no_grad()
def likelihoods(model: Any, questions: Sequence[Question], device: torch.device) -> list[list[float]]:
    """log p of each option of each question, in order.

    ``model`` has ``read`` and ``logits``, and reads from left to right. A sequence that is a prefix of another one (as
    with options of one token) is read with it; rows of similar length form a batch, padded at the end.
    """
    model.eval()
    sequences = [(EOS, *question.prompt, *option[:-1]) for question in questions for option in question.options]
    options = [option for question in questions for option in question.options]
    rows: list[tuple[int, ...]] = []
    row_of = {}
    # In this order a sequence comes right after those that it is a prefix of.
    for sequence in sorted(set(sequences), reverse=True):
        if not rows or rows[-1][: len(sequence)] != sequence:
            rows.append(sequence)
        row_of[sequence] = len(rows) - 1
    wanted: list[list[int]] = [[] for _ in rows]
    for number, sequence in enumerate(sequences):
        wanted[row_of[sequence]].append(number)
    totals = [0.0] * len(options)
    order = sorted(range(len(rows)), key=lambda row: (-len(rows[row]), rows[row]))
    for start in range(0, len(order), ROWS):
        batch = order[start : start + ROWS]
        ids = pad_sequence([torch.tensor(rows[row]) for row in batch], batch_first=True, padding_value=PAD)
        hidden = model.read(ids.to(device))
        sought = [(place, number) for place, row in enumerate(batch) for number in wanted[row]]
        predicted = [
            (place, len(sequences[n]) - len(options[n]) + i, token)
            for place, n in sought
            for i, token in enumerate(options[n])
        ]
        row, position, target = (list(part) for part in zip(*predicted, strict=True))
        logits = model.logits(hidden[row, position])
        nats = -F.cross_entropy(logits, torch.tensor(target, device=device), reduction="none").double()
        by_token = iter(nats.tolist())
        for _, number in sought:
            totals[number] = math.fsum(next(by_token) for _ in options[number])
    in_order = iter(totals)
    return [[next(in_order) for _ in question.options] for question in questions]


# Which option is the answer.


def choose_options(
    texts: Sequence[str], tokens: Sequence[int], nats: Sequence[float], alone: Sequence[float]
) -> dict[str, int]:
    """The option that each of ``RULES`` chooses. Arguments have ``[K]`` values: ``texts`` without the space before
    them, numbers of ``tokens``, and log p after the prompt (``nats``) and the answer context (``alone``)."""
    values = (
        nats,
        [log / len(text.encode()) for log, text in zip(nats, texts, strict=True)],
        [log / count for log, count in zip(nats, tokens, strict=True)],
        [log - other for log, other in zip(nats, alone, strict=True)],
    )
    return {rule: max(range(len(nats)), key=value.__getitem__) for rule, value in zip(RULES, values, strict=True)}


# A task's examples as questions, and the scores of the answers.


@dataclass(frozen=True)
class PromptedTask:
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
class FewshotAnswer:
    """A model's answer to a test example."""

    example: Example
    chosen: dict[str, int]
    """The class by each of ``RULES``."""
    shots: int
    """The number of shots that the context had room for."""
    cut: bool
    """Whether some of the example's own text was left out."""
    overlap: float


def answers(prompted: PromptedTask, shots: int, loaded: Loaded, device: torch.device) -> list[FewshotAnswer]:
    """A model's answer to each test example after at most ``shots`` shots, in order.

    Raises:
        UserError: an option is longer than the model's context, or two are the same to its tokenizer.
    """
    pool = Shots(prompted.train, prompted.seed)
    ask = partial(question, loaded.tokenizer, context=loaded.model.config.context)
    try:
        # Each question; and, for each set of options, the answer context, which has no text of an example.
        alone = {o: ask(prompted.prompt.ending, o) for o in dict.fromkeys(map(prompted.options, prompted.test))}
        read = [
            ask(prompted.ask(e), prompted.options(e), shots=[prompted.show(shot) for shot in pool.draw(e, shots)])
            for e in prompted.test
        ]
    except ValueError as error:
        raise UserError(f"fewshot.tasks: {prompted.task.name}: {error}") from error
    for options, by_itself in alone.items() if prompted.prompt.options else ():
        for i, tokens in enumerate(by_itself.options):
            if tokens in by_itself.options[:i]:
                raise UserError(
                    f"fewshot.prompts.{prompted.task.name}.options: to the model's tokenizer {options[i]!r} is the "
                    "same as another option; expected other words"
                )
    place = OBJECTIVES[loaded.config.objective].ranker
    assert place is not None  # ``FewshotConfig.require_ranker`` checks
    ranker: Ranker = resolve_name(place)
    nats = ranker(loaded.model, read, device)
    nats_alone = dict(zip(alone, ranker(loaded.model, list(alone.values()), device), strict=True))
    scored = []
    for i, example in enumerate(prompted.test):
        options = prompted.options(example)
        choice = choose_options(options, [len(tokens) for tokens in read[i].options], nats[i], nats_alone[options])
        cut = read[i].cut or prompted.ask(example) != prompted.prompt.ask(example)
        scored.append(FewshotAnswer(example, choice, read[i].shots, cut, prompted.overlaps[i]))
    return scored


def measured(
    prompted: PromptedTask, shots: int, scored: Sequence[FewshotAnswer], contaminated: float | None
) -> dict[str, float]:
    """The figures of a task with this number of shots.

    ``score`` is the task's own, by the sum; ``score_<rule>`` is by another rule; ``_low`` and ``_high`` are the ends of
    its 95 % interval (bootstrap over examples). ``baseline`` always answers the training set's most frequent class.
    These leave out the ``excluded`` examples, whose overlap with the training text is at least ``contaminated`` (None:
    none); those that begin with ``all_`` do not. If every example is left out, there is no score.

    ``examples`` counts those that are left; of these ``fewer_shots`` have fewer shots than asked for, ``no_shot`` have
    none, and ``cut`` are not shown whole.
    """
    clean = [answer for answer in scored if contaminated is None or answer.overlap < contaminated]
    figures: dict[str, float] = {
        "examples": len(clean),
        "excluded": len(scored) - len(clean),
        "fewer_shots": sum(answer.shots < shots for answer in clean),
        "no_shot": sum(answer.shots < min(1, shots) for answer in clean),
        "cut": sum(answer.cut for answer in clean),
    }
    majority = int(np.bincount([int(example.label) for example in prompted.train]).argmax())
    for begin, some in (("", clean), ("all_", scored)):
        if not some:
            continue
        for rule in RULES:
            key = f"{begin}score" if rule == "sum" else f"{begin}score_{rule}"
            results = _results(prompted.task, some, [answer.chosen[rule] for answer in some])
            figures[key] = score_by_subset(results)[""]
            if not begin:
                interval = significance.interval_of(results)
                figures |= {f"{key}_low": interval.low, f"{key}_high": interval.high}
        figures[f"{begin}baseline"] = score_by_subset(_results(prompted.task, some, [majority] * len(some)))[""]
    return figures


def evidence_rows(task: GlueTask, scored: Sequence[FewshotAnswer]) -> list[tuple[object, ...]]:
    """The answers as rows of ``COLUMNS``, classes by name."""
    return [
        (
            answer.example.id,
            answer.example.sha256,
            answer.example.subset,
            task.labels[int(answer.example.label)],
            *(task.labels[answer.chosen[rule]] for rule in RULES),
            answer.shots,
            int(answer.cut),
            repr(answer.overlap),
        )
        for answer in scored
    ]


def _results(task: GlueTask, some: Sequence[FewshotAnswer], choices: Sequence[int]) -> Answers:
    subsets, strata = np.unique([answer.example.subset for answer in some], return_inverse=True)
    _, groups = np.unique([answer.example.group or answer.example.id for answer in some], return_inverse=True)
    labels = np.array([int(answer.example.label) for answer in some])
    return Answers(task.score, labels, np.array([choices]), strata, task.labels, tuple(map(str, subsets)), groups)
