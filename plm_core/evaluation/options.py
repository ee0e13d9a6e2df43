"""How likely each of several options is after a prompt: a model's answer without fine-tuning.

Used by the stage fewshot. The measure is log p(option | prompt), summed over the option's tokens (Radford et al. 2019,
section 3; Brown et al. 2020, section 2.4). Prompt and option are one text to the tokenizer, as in
lm-evaluation-harness's ``_encode_pair``, so that the model sees the tokens that it was trained on.

Shapes: B rows, T positions, N predictions, D width, V vocabulary, K options.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from plm_core.objectives import OBJECTIVES
from plm_core.text.special import EOS, PAD
from plm_core.text.tokenizer import Tokenizer

ROWS = 32
"""Rows per batch."""
BETWEEN_SHOTS = "\n\n"
"""What follows each shot, as between paragraphs."""
SEAM = " "
"""What separates a prompt from an option. It is encoded with the option, whose first word it begins."""


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
        asked, answers = _encoded(tokenizer, before + prompt, options)
        room = context - max(map(len, answers))
        if len(asked) <= room and all(answers):
            return Question(asked, answers, held)
    if not all(answers):
        raise ValueError(f"the option {options[answers.index([])]!r} has no token; expected at least one")
    if room < 0:
        longest = options[max(range(len(options)), key=lambda i: len(answers[i]))]
        raise ValueError(
            f"the option {longest!r} has {context - room} tokens; expected at most {context}, the model's context"
        )
    return Question(asked[len(asked) - room :], answers, cut=True)


def _encoded(tokenizer: Tokenizer, prompt: str, options: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """The tokens of the prompt, and of each option after it.

    Tokens that would differ without the option belong to it, and then to every option: all are compared on the same
    text.
    """
    texts = [prompt, *(prompt + SEAM + option for option in options)]
    first, *rest = (tokenizer.encode(text) for text in texts)
    differs = (i for i, tokens in enumerate(zip(first, *rest, strict=False)) if len(set(tokens)) > 1)
    shared = next(differs, min(map(len, (first, *rest))))
    return first[:shared], [ids[shared:] for ids in rest]


class Likelihoods(NamedTuple):
    """The likelihoods of the K options of one question."""

    nats: list[float]
    """``[K]``: log p(option | prompt), at most 0."""
    tokens: list[int]
    """``[K]``: how many tokens each option has."""


Ranker = Callable[[Any, Sequence[Question], torch.device], list[Likelihoods]]
"""A function from a model and questions to the likelihoods of each one's options, in order."""


def ranker_of(objective: str) -> Ranker:
    """The ranker for models of the objective with this name, which has one: ``FewshotConfig.require_ranker`` checks."""
    place = OBJECTIVES[objective].ranker
    assert place is not None
    return resolve_name(place)


@torch.no_grad()
def likelihoods(model: Any, questions: Sequence[Question], device: torch.device) -> list[Likelihoods]:
    """log p of each option of each question, in order.

    ``model`` has ``read`` and ``logits``, and reads from left to right. A sequence that is a prefix of another one (as
    with options of one token) is read with it; rows of similar length form a batch, padded at the end.
    """
    model.eval()
    sequences = [(EOS, *each.prompt, *option[:-1]) for each in questions for option in each.options]
    options = [option for each in questions for option in each.options]
    rows, row_of = _rows(sequences)
    wanted: list[list[int]] = [[] for _ in rows]
    for number, sequence in enumerate(sequences):
        wanted[row_of[sequence]].append(number)
    found = [0.0] * len(options)
    order = sorted(range(len(rows)), key=lambda row: (-len(rows[row]), rows[row]))
    for start in range(0, len(order), ROWS):
        batch = order[start : start + ROWS]
        ids = pad_sequence([torch.tensor(rows[row]) for row in batch], batch_first=True, padding_value=PAD)
        hidden = model.read(ids.to(device))
        asked = [(place, number) for place, row in enumerate(batch) for number in wanted[row]]
        sums = _sums(model, hidden, [(place, len(sequences[n]), options[n]) for place, n in asked])
        for (_, number), nats in zip(asked, sums, strict=True):
            found[number] = nats
    ends = accumulate(len(each.options) for each in questions)
    sides = zip(questions, ends, strict=True)
    return [Likelihoods(found[e - len(q.options) : e], [len(option) for option in q.options]) for q, e in sides]


def _rows(sequences: Iterable[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], int]]:
    """The sequences that are not a prefix of another one, and which of them contains each sequence."""
    rows: list[tuple[int, ...]] = []
    row_of = {}
    # In this order a sequence comes right after those that it is a prefix of.
    for sequence in sorted(set(sequences), reverse=True):
        if not rows or rows[-1][: len(sequence)] != sequence:
            rows.append(sequence)
        row_of[sequence] = len(rows) - 1
    return rows, row_of


def _sums(model: Any, hidden: torch.Tensor, asked: Sequence[tuple[int, int, list[int]]]) -> Iterator[float]:
    """log p of each option by hidden states ``[B, T, D]``; an option is ``(row, length of its sequence, tokens)``."""
    rows = [row for row, _, option in asked for _ in option]
    places = [stop - len(option) + i for _, stop, option in asked for i in range(len(option))]
    targets = torch.tensor([token for *_, option in asked for token in option], device=hidden.device)
    logits = model.logits(hidden[rows, places])
    each = iter((-F.cross_entropy(logits, targets, reduction="none").double()).tolist())
    return (math.fsum(next(each) for _ in option) for *_, option in asked)


class Said(NamedTuple):
    """The numbers by which an option is judged."""

    nats: float
    """log p(option | prompt)."""
    bytes: int
    """The UTF-8 bytes of the option, without the space before it."""
    tokens: int
    """Its tokens."""
    unconditional: float
    """log p(option | what follows the last text in the prompt)."""


RULES: dict[str, Callable[[Said], float]] = {
    "sum": lambda said: said.nats,
    "per_byte": lambda said: said.nats / said.bytes,
    "per_token": lambda said: said.nats / said.tokens,
    "unconditional": lambda said: said.nats - said.unconditional,
}
"""The variants of the choice: the option with the highest value is the answer, the first one if several are equal.

* ``sum``: the likelihood itself, ``acc`` of lm-evaluation-harness; it favours short options.
* ``per_byte``: divided by the option's length in bytes, whatever the tokenizer; its ``acc_norm``, which counts
  characters, is the same for ASCII.
* ``per_token``: divided by the number of tokens (Brown et al. 2020, section 2.4).
* ``unconditional``: p(option | prompt) / p(option | answer context) (Brown et al. 2020, section 2.4): what the texts
  add. The answer context is what the template has after its last text, as in the domain-conditional PMI of Holtzman et
  al. 2021, "Surface Form Competition", equation 3.
"""


def chosen(options: Sequence[str], given: Likelihoods, without: Sequence[float]) -> dict[str, int]:
    """Which of the K options each of ``RULES`` takes; ``without`` ``[K]`` is log p by the answer context alone."""
    sides = zip(given.nats, options, given.tokens, without, strict=True)
    said = [Said(nats, len(text.encode()), tokens, alone) for nats, text, tokens, alone in sides]
    return {name: max(range(len(said)), key=lambda i: rule(said[i])) for name, rule in RULES.items()}
