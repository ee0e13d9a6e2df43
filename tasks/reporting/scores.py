"""The report's section on fine-tuning: scores with their intervals, the better models, and confused classes.

All of it comes from the evidence, example by example, and from the metrics files. Used by the stage report.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_core.benchmarks import task as glue
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Answers
from plm_core.evaluation.comparison import Comparison, Estimate, compare
from plm_core.evaluation.evidence import Table, read_task
from plm_core.shared import paths
from tasks.reporting import diagnosis
from tasks.reporting.page import drawn, plotting

MOST_CLASSES = 8
"""More do not fit into a picture."""
UNSHOWN = ("score", "baseline", "best_step")
"""Metrics that are shown elsewhere."""

Tables = dict[str, dict[str, Table]]
"""Evidence by task and model."""


def finetuned(
    models: Sequence[str], tasks: Mapping[str, str | None], seeds: Sequence[int], share: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """The section's figures, and its pictures by file name; ``tasks`` gives the task that each was fine-tuned after.

    The gate never sees ``share`` of the examples.

    Raises:
        UserError: evidence is missing or damaged.
    """
    # By seed: the file of a seed that was removed from the parameters is still there.
    files = {(m, t): [paths.EVIDENCE / m / f"{t}.{seed}.csv" for seed in seeds] for m in models for t in tasks}
    tables = {task: {model: read_task(files[model, task]) for model in models} for task in tasks}
    told = [_task(task, rows, seeds, share) for task, rows in tables.items()]
    several = models if len(tables) > 1 else ()
    section = {
        "models": list(models),
        "seeds": len(seeds),
        "limits": diagnosis.LIMITS,
        "tasks": [figures | {"after": tasks[figures["name"]]} for figures, _ in told],
        "means": {model: np.mean([rows[model].value for rows in tables.values()]) for model in several},
        "guesses": {name: _guesses(tables, name) for name in ("score", "baseline")},
        "unknown": [task for task in tables if not _known(task)],
        "pairs": _pairs(models, tasks, seeds) if tasks else [],
    }
    return section, {name: picture for _, pictures in told for name, picture in pictures.items()}


def _task(
    task: str, rows: dict[str, Table], seeds: Sequence[int], share: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """A task's figures, and its pictures."""
    described = glue.read_task(paths.EXAMPLES / task)
    metrics = {}
    for model in rows:
        each = [metrics_of(f"finetune-{model}-{task}-{seed}") for seed in seeds]
        metrics[model] = {name: [found[name] for found in each] for name in each[0]}
    behind, pictures = diagnosis.behind(described, rows, metrics)
    classes = described.labels if all(isinstance(found.results, Answers) for found in rows.values()) else ()
    if confused := 0 < len(classes) <= MOST_CLASSES:
        pictures[f"confusion-{task}.svg"] = _confusions(rows, described.labels)
    names = next(iter(metrics.values()))
    figures = behind | {
        "name": task,
        "question": described.question,
        "kind": described.kind,
        "score": next(iter(rows.values())).results.score,  # type: ignore[union-attr]
        "metrics": metrics,
        "shown": [name for name in names if name not in UNSHOWN and not name.startswith(diagnosis.CHECKS)],
        "groups": next(iter(rows.values())).groups,
        "apart": apart(rows, share),
        "intervals": {model: significance.interval_of(found.results) for model, found in rows.items()},
        "constant": {model: always for model, found in rows.items() if (always := _constant(found))},
        "confused": confused,
    }
    return figures, pictures


def apart(rows: Mapping[str, Table], share: float) -> dict[str, Any] | None:
    """How many examples the gate never sees, and each model's score on them; None if it sees all."""
    parts = {model: found.parted(share)[1] for model, found in rows.items()}
    some = next(iter(parts.values()))
    if some is None:
        return None
    told = {
        model: Estimate(part.value, significance.interval_of(part.results)) for model, part in parts.items() if part
    }
    return {"examples": len(some.examples), "groups": some.groups, "scores": told}


def _guesses(tables: Tables, name: str) -> list[float | None]:
    """A figure of the stage baseline for each task, and the mean of several tasks if all are known."""
    each = [metrics_of(f"baseline-{task}")[name] if _known(task) else None for task in tables]
    known = [value for value in each if value is not None]
    mean = float(np.mean(known)) if known and len(known) == len(each) else None
    return [*each, mean] if len(each) > 1 else [*each]


def _known(task: str) -> bool:
    """Whether the evidence and the metrics of the stage baseline exist."""
    evidence = paths.WORDS / f"{task}.{paths.WORDS_SEED}.csv"
    return evidence.is_file() and (paths.METRICS / f"baseline-{task}.json").is_file()


def _pairs(models: Sequence[str], tasks: Mapping[str, str | None], seeds: Sequence[int]) -> list[Comparison]:
    """Every two models on all tasks, and each with words alone, except on tasks learned after another."""
    alone = [task for task, before in tasks.items() if before is None and _known(task)]
    pairs = [(one, two, list(tasks)) for one, two in itertools.combinations(models, 2)]
    pairs += [(model, paths.WORDS.name, alone) for model in models if alone]
    compared = []
    for one, two, names in pairs:
        files = [f"{task}.{seed}.csv" for task in names for seed in {paths.WORDS_SEED, *seeds}]
        compared.append(compare((paths.EVIDENCE / one, paths.EVIDENCE / two), (one, two), only=files))
    return compared


def _constant(found: Table) -> list[str]:
    """The class of each seed that gives the same answer to every example."""
    answers = found.results
    if not isinstance(answers, Answers) or not answers.classes:
        return []
    return [answers.classes[int(each[0])] for each in answers.predictions if len(set(each)) == 1]


def _confusions(rows: dict[str, Table], labels: Sequence[str]) -> str:
    """Plot the confusion matrix of each model: shares of each true class, all seeds together."""
    pyplot = plotting()
    side = 1.6 + 0.55 * len(labels)
    figure, all_axes = pyplot.subplots(
        1, len(rows), figsize=(side * len(rows) + 1, side), squeeze=False, layout="constrained", sharey=True
    )
    for axes, (model, found) in zip(all_axes[0], rows.items(), strict=True):
        answers = found.results
        assert isinstance(answers, Answers)
        place = np.array([labels.index(name) if name in labels else -1 for name in answers.classes])
        counts = np.zeros((len(labels), len(labels)))
        for predictions in answers.predictions:
            np.add.at(counts, (place[answers.labels.astype(int)], place[predictions.astype(int)]), 1)
        shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        for (i, j), share in np.ndenumerate(shares):
            axes.text(j, i, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.6 else "black")
        axes.set(title=model, xlabel="answered", xticks=range(len(labels)), yticks=range(len(labels)))
        axes.set_xticklabels(labels, rotation=30, ha="right")
        axes.set_yticklabels(labels)
    all_axes[0][0].set_ylabel("true")
    return drawn(figure)


def metrics_of(name: str) -> dict[str, Any]:
    """The content of the metrics file of a stage with this name."""
    return json.loads((paths.METRICS / f"{name}.json").read_text(encoding="utf-8"))
