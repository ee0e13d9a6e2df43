"""The behavioural checks of a task: handwritten ones in ``<task>.jsonl`` here, a team's own, and those made by rule.

Used by the stage examples. A team's own are a file ``checks.jsonl`` in the folder of its examples, so that DVC sees
when it changes. ``checks.py`` defines a check. Each rule makes at most ``MOST`` checks from the test examples, as a
function of an example's id and texts alone: the same examples give the same checks.
"""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_core.benchmarks.checks import FILE, Check, read_checks
from plm_core.benchmarks.examples import Example, sample
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError

HERE = Path(__file__).parent
KINDS = ("classification", "regression")
"""The tasks that are checked."""
MOST = 200
"""The most checks of one rule."""
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


def checks_of(task: GlueTask, test: Sequence[Example], source: Path) -> list[Check]:
    """The checks of a task, whose examples were read from ``source``.

    Raises:
        UserError: a line of a file is not a check, or tasks of this kind have none; the message names it.
    """
    if task.kind not in KINDS:
        if (source / FILE).is_file():
            expected = f"a {' or '.join(KINDS)}; remove the file"
            raise UserError(f"{source / FILE}: checks of {task.name}, a {task.kind}; expected {expected}")
        return []
    known = [example.id for example in test]
    found: list[Check] = []
    for path, prefix in ((HERE / f"{task.name}.jsonl", "check"), (source / FILE, "own")):
        if path.is_file():
            found += read_checks(path, task, [*known, *(one.id for one in found)], prefix)
    chosen = sample(test, MOST)
    if task.name not in SPELLING_MATTERS:
        found += _typos(chosen)
    if task.symmetric:
        found += (Check(f"swapped/{e.id}", "swapped texts", e.b, e.a, "same", e.id) for e in chosen if e.b is not None)
    if task.name in TWICE:
        found += (Check(f"twice/{e.id}", "same text twice", e.a, e.a, "label", TWICE[task.name]) for e in chosen)
    return found


def _typos(examples: Sequence[Example]) -> Iterator[Check]:
    """Two neighbouring letters within a word of four or more of the first text are swapped; the answer stays."""
    for example in examples:
        places = [
            place
            for word in re.finditer(r"[^\W\d_]{4,}", example.a)
            for place in range(word.start() + 1, word.end() - 2)
            if example.a[place] != example.a[place + 1]
        ]
        if places:
            at = random.Random(f"typos/{example.id}").choice(places)
            a = example.a[:at] + example.a[at + 1] + example.a[at] + example.a[at + 2 :]
            yield Check(f"typos/{example.id}", "typos", a, example.b, "same", example.id)
