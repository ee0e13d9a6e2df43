"""Details of the score of a GLUE-like task: slices, calibration, the worst answers. A part of the report.

All of it comes from the evidence, the examples and the output of the stage slices. Used by ``scores.py`` and, for the
decision record, by ``record.py``.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from plm_core.benchmarks.checks import TOLERANCE
from plm_core.benchmarks.examples import file_of
from plm_core.benchmarks.task import GlueTask, read_examples
from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import of_numbers
from plm_core.evaluation.calibration import bins, calibration
from plm_core.evaluation.comparison import Estimate
from plm_core.evaluation.evidence import Table
from plm_core.evaluation.slices import CONTAMINATED, Slice, read_slices, slices
from plm_core.shared import paths
from tasks.reporting.page import drawn, plotting

FEWEST = 20
"""For fewer examples no score is shown: its interval would contain almost any value."""
WORST = 5
"""The number of answers listed per model."""
LETTERS = 160
"""The number of characters shown of each text."""
RESAMPLES = 2_000
"""For the interval of a slice: there are many slices, and their intervals are wide."""
CHECKS = "checks/"
"""The prefix of their metrics."""
LIMITS = {"contaminated": CONTAMINATED, "fewest": FEWEST, "tolerance": TOLERANCE}
"""The numbers that the page mentions."""


def behind(
    task: GlueTask, rows: dict[str, Table], metrics: dict[str, dict[str, list[float]]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The figures, and pictures by file name, from each model's evidence and its metrics by seed.

    Raises:
        UserError: the examples, or their slices, are missing or not those of the evidence.
    """
    found = sliced(task.name, rows.values())
    parts = (
        found
        if found is None
        else [
            {"kind": each[0].kind, "name": each[0].name, "examples": int(each[0].members.sum())}
            | {"scores": [_score(part) for part in each]}
            for each in found
        ]
    )
    checks = dict.fromkeys(n.split("/")[1] for found in metrics.values() for n in found if n.startswith(CHECKS))
    failed = {name: [_failed(found, CHECKS + name) for found in metrics.values()] for name in checks}
    figures = {"slices": parts, "worst": _worst(task, rows), "checks": failed}
    if any(found.confidences is None or np.isnan(found.confidences).any() for found in rows.values()):
        return figures | {"calibrations": {}}, {}
    calibrations = {model: calibration(_sure(found), _results(found).right()) for model, found in rows.items()}
    return figures | {"calibrations": calibrations}, {f"reliability-{task.name}.svg": _reliability(rows)}


def sliced(task: str, tables: Iterable[Table]) -> list[tuple[Slice, ...]] | None:
    """The slices of a task's test examples, of each table in turn; None if the stage slices has not run.

    Raises:
        UserError: the output of the stage slices lacks an example.
    """
    path = paths.SLICES / f"{task}.csv"
    if not path.is_file():
        return None
    known = read_slices(path)
    columns: list[list[Slice]] = []
    for found in tables:
        if missing := [name for name in found.ids if name not in known]:
            raise UserError(
                f"{path}: lacks the example {missing[0]!r}; run its stage again (`dvc repro slices@{task}`)"
            )
        columns.append(slices([known[name] for name in found.ids], _results(found)))
    return list(zip(*columns, strict=True))


def _score(part: Slice) -> Estimate | str:
    """The mean score over seeds, and its interval; or why there is none."""
    return unscored(part) or Estimate(score_of(part), significance.interval_of(part.results, resamples=RESAMPLES))


def unscored(part: Slice) -> str:
    """Why no score of a slice is shown; empty if it is."""
    if int(part.members.sum()) < FEWEST:
        return "too few"
    return "" if part.scored else "equal labels"


def score_of(part: Slice) -> float:
    """The mean score over seeds on the examples of a slice."""
    return float(part.results.values(np.ones((1, int(part.members.sum())))).mean())


def _reliability(rows: dict[str, Table]) -> str:
    """Plot accuracy by confidence, over the answers of all seeds, and below it a histogram of confidence."""
    pyplot = plotting()
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(5.2, 5.2), height_ratios=(3, 1), sharex=True, layout="constrained"
    )
    low = min(float(_sure(found).min()) for found in rows.values())
    edges = np.linspace(np.floor(low * 20) / 20, 1, 21)
    above.plot(edges[[0, -1]], edges[[0, -1]], color="gray", lw=1, ls=":", label="perfectly calibrated")
    for model, found in rows.items():
        sure = _sure(found).ravel()
        counts, means, shares = bins(sure, _results(found).right().ravel())
        least, most = int(counts.min()), int(counts.max())
        size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        (line,) = above.plot(means, shares, "o-", ms=4, lw=1.2, label=f"{model} ({size} answers per point)")
        below.hist(sure, edges, histtype="step", color=line.get_color())
    above.set(ylabel="accuracy", ylim=(-0.02, 1.02))
    above.legend(frameon=False, fontsize="small")
    below.set(xlabel="confidence", ylabel="answers")
    for axes in (above, below):
        axes.grid(alpha=0.25)
    return drawn(figure)


def _worst(task: GlueTask, rows: dict[str, Table]) -> list[dict[str, Any]]:
    """The examples on which each model is most confidently wrong, or furthest off, with their texts."""
    path = file_of(paths.EXAMPLES / task.name, "test")
    examples = {example.id: example for example in read_examples(path, task)}
    listed = []
    for model, found in rows.items():
        for place, answer, how in _furthest(found) if of_numbers(_results(found).score) else _surest(found):
            if (name := found.ids[place]) not in examples:
                raise UserError(f"{path}: lacks the example {name!r}; run `dvc repro finetune` again")
            a, b = examples[name].a, examples[name].b
            texts = {"label": found.labels[place], "answer": answer, "a": a, "b": b}
            listed.append({"model": model, "id": name, "how": how} | {key: _cut(text) for key, text in texts.items()})
    return listed


def _surest(found: Table) -> list[tuple[int, str, float]]:
    """The places of wrong answers, the most confident answer, and the mean confidence in wrong ones over seeds."""
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


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LETTERS else f"{text[:LETTERS].rsplit(maxsplit=1)[0]} ..."


def _failed(found: dict[str, list[float]], check: str) -> tuple[int, Estimate]:
    """How often a model was asked, and the share of these that it fails."""
    asked = int(found[f"{check}/asked"][0])
    share = float(np.mean(found[f"{check}/failed"])) / asked
    return asked, Estimate(share, significance.wilson(share, asked))


def _results(found: Table) -> Any:
    """The answers to a task; every kind of results can be resampled and sliced, and says which answers are right."""
    return found.results


def _sure(found: Table) -> np.ndarray:
    assert found.confidences is not None
    return found.confidences
