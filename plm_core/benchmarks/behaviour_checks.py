"""Behavioural checks: texts that each test one ability, and whether a fine-tuned model gives the expected answers.

After Ribeiro et al. 2020, "Beyond Accuracy: Behavioral Testing of NLP Models with CheckList", section 2: an expectation
is an answer (minimum functionality), the same answer as to another text (invariance), or a different one (direction).
The stage examples writes the checks of a task next to its splits, finetune runs them, the report shows the failures.
They are handwritten (``behaviour/<task>.jsonl`` here), a team's own (``checks.jsonl`` in the folder of its examples, so
that DVC sees when it changes), and made by rule from the test examples.

A line of the file: ``{"id": "not-3", "check": "negation", "a": "...", "b": "...", "expect": {"label": "negative"}}``;
``b`` if the task has pairs; ``expect`` has one of ``label``, ``same`` and ``other``, the latter two with the id of a
test example or of an earlier check.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plm_core.benchmarks.example_readers import Example, read_lines, sample, write_lines
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.config import UserError

FILE = "checks.jsonl"
EXPECTATIONS = ("label", "same", "other")
TOLERANCE = 0.05
"""Numbers count as the same if they differ by at most this share of the task's span, or of the test labels' range."""
HERE = Path(__file__).parent / "behaviour"
MOST = 200
"""The most checks of one rule. They are a function of an example's id and texts alone: the same examples give the same
checks."""
SPELLING_MATTERS = ("cola",)
"""Tasks whose right answer a typo may change."""
TWICE: dict[str, str | float] = {
    "mnli": "entailment",
    "rte": "entailment",
    "mrpc": "equivalent",
    "qqp": "duplicate",
    "stsb": 5.0,
}
"""The right answer for the same text twice."""


@dataclass(frozen=True)
class Check:
    """A text and the expected answer."""

    id: str
    """Unique among the checks and the test examples."""
    check: str
    """What it tests: ``negation``, ``typos``. Failures are counted by this name."""
    a: str
    b: str | None
    expect: str
    """One of ``EXPECTATIONS``."""
    of: str | float
    """The class (the number, for a regression); or the id of the text whose answer is compared."""


class Judged(NamedTuple):
    """A check and a model's answer: a row of the file of results."""

    id: str
    check: str
    expected: str
    answered: str
    passed: int
    """1 or 0."""


COLUMNS = Judged._fields


def write_checks(path: Path, checks: Iterable[Check]) -> None:
    """Write JSON lines."""

    def fields_of(check: Check) -> dict[str, Any]:
        pair = {} if check.b is None else {"b": check.b}
        return {"id": check.id, "check": check.check, "a": check.a, **pair, "expect": {check.expect: check.of}}

    write_lines(path, map(fields_of, checks))


def read_checks(path: Path, task: GlueTask, ids_before: Iterable[str], prefix: str = "check") -> list[Check]:
    """The checks of a file. ``ids_before`` are the ids of test examples and earlier checks.

    A line without an id gets one from its number: ``check-1``.

    Raises:
        UserError: the file is missing, or a line is not a check of the task; the message names the line.
    """
    ids = set(ids_before)

    def check_of(fields: Any, number: int) -> Check:
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        if odd := fields.keys() - {"id", "check", "a", "b", "expect"}:
            raise ValueError(f"unknown fields {', '.join(sorted(odd))}")
        name = fields.get("id", f"{prefix}-{number}")
        if not all(isinstance(text, str) for text in (name, fields["check"], fields["a"], fields.get("b", ""))):
            raise ValueError("id, check, a, b: expected texts")
        if not re.fullmatch(r"[\w. -]+", fields["check"]):
            raise ValueError(f"check: found {fields['check']!r}; expected letters, digits, spaces and . _ -")
        expect = fields["expect"]
        if not isinstance(expect, dict) or len(expect) != 1 or not expect.keys() <= set(EXPECTATIONS):
            raise ValueError(f"expect: found {expect!r}; expected one of {', '.join(EXPECTATIONS)} with its value")
        ((kind, of),) = expect.items()
        if kind == "label":
            number_given = isinstance(of, int | float) and math.isfinite(of)
            if of not in task.labels if task.labels else not number_given:
                expected = f"one of {', '.join(task.labels)}" if task.labels else "a number"
                raise ValueError(f"expect.label: found {of!r}; expected {expected}")
        elif of not in ids:
            raise ValueError(f"expect: no test example or earlier check has the id {of!r}")
        if name in ids:
            raise ValueError(f"id: {name!r} is already used; expected a unique id")
        ids.add(name)
        return Check(name, fields["check"], fields["a"], fields.get("b"), kind, of)

    return read_lines(path, "examples", check_of, f"a check of {task.name} ({__name__})")


def run_behaviour_checks(
    task: GlueTask,
    checks: Sequence[Check],
    test: Sequence[Example],
    answers: Sequence[float],
    ask: Callable[[list[Example]], Sequence[float]],
) -> list[Judged]:
    """Run all checks on a model, and judge its answers.

    ``answers`` are those to the test examples; ``ask`` returns those to others. A check that refers to a test example
    outside the sample is left out.
    """
    answer_of = {example.id: answer for example, answer in zip(test, answers, strict=True)}
    kept: list[Check] = []
    for check in checks:
        if check.expect == "label" or check.of in answer_of:
            kept.append(check)
            answer_of[check.id] = math.nan
    if not kept:
        return []
    more = ask([Example(check.id, check.a, check.b, 0) for check in kept])
    answer_of |= {check.id: answer for check, answer in zip(kept, more, strict=True)}
    low, high = task.span or (min(e.label for e in test), max(e.label for e in test))
    judged = []
    for check in kept:
        answer = answer_of[check.id]
        if check.expect != "label":
            wanted = answer_of[str(check.of)]
        else:
            wanted = task.labels.index(str(check.of)) if task.labels else float(check.of)
        alike = answer == wanted if task.labels else abs(answer - wanted) <= TOLERANCE * (high - low)
        answered, expected = (task.labels[int(n)] if task.labels else f"{n:.4g}" for n in (answer, wanted))
        other = check.expect == "other"
        expected = f"not {expected}" if other else expected
        judged.append(Judged(check.id, check.check, expected, answered, int(alike != other)))
    return judged


def check_counts(judged: Iterable[Judged]) -> dict[str, int]:
    """The number of checks asked and failed, as metrics: ``checks/typos/asked``, ``checks/typos/failed``."""
    counts = Counter[str]()
    for result in judged:
        counts[f"checks/{result.check}/asked"] += 1
        counts[f"checks/{result.check}/failed"] += 1 - result.passed
    return counts


def checks_of(task: GlueTask, test: Sequence[Example], source: Path) -> list[Check]:
    """The checks of a task, whose examples were read from ``source``.

    Raises:
        UserError: a line of a file is not a check, or tasks of this kind have none; the message names it.
    """
    if not KINDS[task.kind].has_checks:
        if (source / FILE).is_file():
            expected = f"a {' or '.join(name for name, kind in KINDS.items() if kind.has_checks)}; remove the file"
            raise UserError(f"{source / FILE}: checks of {task.name}, a {task.kind}; expected {expected}")
        return []
    ids = [example.id for example in test]
    checks: list[Check] = []
    for path, prefix in ((HERE / f"{task.name}.jsonl", "check"), (source / FILE, "own")):
        if path.is_file():
            checks += read_checks(path, task, [*ids, *(check.id for check in checks)], prefix)
    chosen = sample(test, MOST)
    for e in chosen if task.name not in SPELLING_MATTERS else ():
        # Two neighbouring letters within a word of four or more of the first text are swapped; the answer stays.
        places = [
            place
            for word in re.finditer(r"[^\W\d_]{4,}", e.a)
            for place in range(word.start() + 1, word.end() - 2)
            if e.a[place] != e.a[place + 1]
        ]
        if places:
            at = random.Random(f"typos/{e.id}").choice(places)
            swapped = e.a[:at] + e.a[at + 1] + e.a[at] + e.a[at + 2 :]
            checks.append(Check(f"typos/{e.id}", "typos", swapped, e.b, "same", e.id))
    if task.symmetric:
        checks += (Check(f"swapped/{e.id}", "swapped texts", e.b, e.a, "same", e.id) for e in chosen if e.b is not None)
    if task.name in TWICE:
        checks += (Check(f"twice/{e.id}", "same text twice", e.a, e.a, "label", TWICE[task.name]) for e in chosen)
    return checks
