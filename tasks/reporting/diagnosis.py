"""What lies behind the score of a GLUE-like task: slices, calibration, the worst answers. A part of the report.

All of it comes from the evidence, the examples and what the stage slices knows of them. Used by ``scores.py``.
"""

from typing import Any

import numpy as np

from plm_core.benchmarks.checks import TOLERANCE
from plm_core.benchmarks.examples import Example, file_of, read_examples
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import of_numbers, parts_of
from plm_core.evaluation.calibration import bins, calibration
from plm_core.evaluation.evidence import Table
from plm_core.evaluation.slices import CONTAMINATED, Slice, read_slices, slices
from plm_core.shared import paths
from tasks.reporting.page import drawn, folded, plain, plotting, table

FEWEST = 20
"""Of fewer examples no score is shown: its interval would hold almost any."""
WORST = 5
"""Answers that are listed of each model."""
LETTERS = 160
"""Of each text of a listed example."""
SIGNED = {"matthews", "pearson", "spearman"}
"""The scores that may be below 0."""
RESAMPLES = 2_000
"""For the interval of a slice: there are many slices, and their intervals are wide."""
CHECKS = "checks/"
"""How the names of their metrics begin."""
READING = f"""\
Behind the score of each task stand:

- **Slices**: the mean score over seeds on parts of the test examples, with its interval at 95 %: by length (quarters
  of the number of words), by subset, by label, and by overlap with the text that the models were pretrained on: the
  share of an example's runs of eight words that stand in it word for word (none, below {CONTAMINATED:.0%}, more; a
  shorter text is one run, and often stands somewhere). On the examples of one class the score is the accuracy, which is
  the recall of the class. A correlation within a part of the numbers is lower than over all of them. Where there are
  fewer than {FEWEST} examples, only their number is told.
- **Calibration**: is a model as often right as it is sure? The calibration error is the distance between accuracy and
  mean confidence in bins of equally many answers, 0 at best; even a perfectly calibrated model has 0.03 with 1,000
  examples, 0.07 with 200. The Brier score is the squared distance between an answer's confidence and 1 if it is right,
  0 if not. Of the picture, points below the diagonal are of answers that are given too surely.
- **Worst answers**: the wrong answers with the highest confidence, the mean over seeds, where a seed that is right
  counts as 0; of numbers, those furthest off.
- **Behavioural checks**: which share of texts that were made for one purpose is not answered as expected (CheckList),
  the mean over seeds, with Wilson's interval at 95 %. With a typo, or with its two texts swapped, an example must be
  answered as without (numbers: within {TOLERANCE:.0%} of their span); who always gives the same answer passes. Of the
  others one answer is right. What was asked and answered stands in `{paths.CHECKS}`."""


def behind(
    task: GlueTask, rows: dict[str, Table], metrics: dict[str, dict[str, list[float]]]
) -> tuple[list[str], dict[str, str]]:
    """The parts in Markdown, and pictures by file name, of each model's evidence and its metrics by seed.

    Raises:
        UserError: the examples, or what is known of them, are missing or others than those of the evidence.
    """
    parts = [folded("Slices", _slices(task.name, rows))]
    figures = {}
    if all(found.confidences is not None and not np.isnan(found.confidences).any() for found in rows.values()):
        figures[f"reliability-{task.name}.svg"] = _reliability(rows)
        picture = f"![Accuracy by confidence on {task.name}](reliability-{task.name}.svg)"
        parts.append(folded("Calibration", _calibrations(rows), picture))
    parts.append(folded("Worst answers", _worst(task, rows)))
    if checks := _checks(metrics):
        parts.append(folded("Behavioural checks", checks))
    return parts, figures


def _slices(task: str, rows: dict[str, Table]) -> str:
    """A row a slice, a column a model."""
    path = paths.SLICES / f"{task}.csv"
    if not path.is_file():
        return "There are none: the stage slices left nothing of this task."
    known = read_slices(path)
    columns: list[list[Slice]] = []
    for found in rows.values():
        if missing := [name for name in found.ids if name not in known]:
            raise UserError(
                f"{path}: lacks the example {missing[0]!r}; run its stage again (`dvc repro slices@{task}`)"
            )
        columns.append(slices([known[name] for name in found.ids], _results(found)))
    lines = [
        [each[0].kind, plain(each[0].name), f"{each[0].members.sum():,}", *map(_value, each)]
        for each in zip(*columns, strict=True)
    ]
    return table(["", "slice", "examples", *rows], lines)


def _value(part: Slice) -> str:
    """The mean score over seeds, and its interval."""
    if (size := int(part.members.sum())) < FEWEST:
        return "too few"
    (draws,) = significance.bootstrap([part.results], significance.generator(), RESAMPLES)
    # With few seeds, a draw of them may take the score beyond what it can be.
    least = -1.0 if {name for name, _ in parts_of(part.results.score)} & SIGNED else 0.0
    interval = significance.interval(np.clip(draws[""], least, 1.0))
    value = float(part.results.values(np.ones((1, size))).mean())
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _calibrations(rows: dict[str, Table]) -> str:
    lines = []
    for model, found in rows.items():
        measured = calibration(_sure(found), _results(found).right())
        numbers = (measured.accuracy, measured.confidence, measured.error, measured.brier)
        lines.append([model, *(f"{number:.3f}" for number in numbers)])
    return table(["model", "accuracy", "mean confidence", "calibration error", "Brier score"], lines)


def _reliability(rows: dict[str, Table]) -> str:
    """Accuracy by confidence, the answers of all seeds together, and below it how many answers are how sure."""
    pyplot = plotting()
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(5.2, 5.2), height_ratios=(3, 1), sharex=True, layout="constrained"
    )
    low = min(float(_sure(found).min()) for found in rows.values())
    edges = np.linspace(np.floor(low * 20) / 20, 1, 21)
    above.plot(edges[[0, -1]], edges[[0, -1]], color="gray", lw=1, ls=":", label="as sure as right")
    for model, found in rows.items():
        sure, right = _sure(found).ravel(), _results(found).right().ravel()
        counts, means, shares = bins(sure, right)
        said = f"{model} ({_range(counts)} answers a point)"
        (line,) = above.plot(means, shares, "o-", ms=4, lw=1.2, label=said)
        below.hist(sure, edges, histtype="step", color=line.get_color())
    above.set(ylabel="right", ylim=(-0.02, 1.02))
    above.legend(frameon=False, fontsize="small")
    below.set(xlabel="confidence", ylabel="answers")
    for axes in (above, below):
        axes.grid(alpha=0.25)
    return drawn(figure)


def _range(counts: Any) -> str:
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _worst(task: GlueTask, rows: dict[str, Table]) -> str:
    """The examples on which each model is surely wrong, or furthest off, with their texts."""
    path = file_of(paths.EXAMPLES / task.name, "test")
    examples = {example.id: example for example in read_examples(path, task)}
    lines = []
    for model, found in rows.items():
        ids = found.ids
        for place, answer, how in _furthest(found) if of_numbers(_results(found).score) else _surest(found):
            if ids[place] not in examples:
                raise UserError(f"{path}: lacks the example {ids[place]!r}; run `dvc repro finetune` again")
            texts = _texts(examples[ids[place]])
            lines.append([model, _cut(found.labels[place]), _cut(answer), f"{how:.3f}", texts, plain(ids[place])])
    measure = "off by" if task.kind == "regression" else "confidence"
    return table(["model", "true", "answered", measure, "text", "example"], lines) if lines else "No answer is wrong."


def _surest(found: Table) -> list[tuple[int, str, float]]:
    """The places of wrong answers, the answer given most surely, and the mean confidence in wrong ones over seeds."""
    right = _results(found).right()
    wrong = np.where(right, 0.0, np.nan_to_num(_sure(found)))
    order = [int(i) for i in np.argsort(-wrong.mean(axis=0), kind="stable")[:WORST] if not right[:, i].all()]
    return [(i, found.predictions[wrong[:, i].argmax()][i], float(wrong[:, i].mean())) for i in order]


def _furthest(found: Table) -> list[tuple[int, str, float]]:
    """The places of the numbers furthest off, the mean answer over seeds, and its mean distance."""
    answers = _results(found)
    off = np.abs(answers.predictions - answers.labels).mean(axis=0)
    order = np.argsort(-off, kind="stable")[:WORST].tolist()
    return [(i, f"{answers.predictions[:, i].mean():.3g}", float(off[i])) for i in order]


def _texts(example: Example) -> str:
    return _cut(example.a) if example.b is None else f"**A** {_cut(example.a)} **B** {_cut(example.b)}"


def _cut(text: str) -> str:
    return plain(text if len(text) <= LETTERS else f"{text[:LETTERS].rsplit(maxsplit=1)[0]} ...")


def _checks(metrics: dict[str, dict[str, list[float]]]) -> str:
    """The share of each check that a model fails; "" where it was asked none."""
    names = {n.split("/")[1]: None for found in metrics.values() for n in found if n.startswith(CHECKS)}
    lines = []
    for name in names:
        asked = {int(found[f"{CHECKS}{name}/asked"][0]) for found in metrics.values()}
        cells = []
        for found in metrics.values():
            count = int(found[f"{CHECKS}{name}/asked"][0])
            share = float(np.mean(found[f"{CHECKS}{name}/failed"])) / count
            interval = significance.wilson(share, count)
            cells.append(f"{share:.3f} [{interval.low:.3f}, {interval.high:.3f}]")
        lines.append([name, ", ".join(f"{count:,}" for count in sorted(asked)), *cells])
    return table(["share that fails", "asked", *metrics], lines) if lines else ""


def _results(found: Table) -> Any:
    """The answers to a task; each kind of results can be resampled, taken a part of, and tells what is right."""
    return found.results


def _sure(found: Table) -> np.ndarray:
    assert found.confidences is not None
    return found.confidences
