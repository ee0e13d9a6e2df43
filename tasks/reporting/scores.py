"""The report's section on fine-tuning: scores with their intervals, who is better, and which classes are mixed up.

All of it comes from the evidence, example by example, and from the metrics files. Used by the stage report.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from plm_core.benchmarks import task as glue
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Answers
from plm_core.evaluation.comparison import compare
from plm_core.evaluation.evidence import Table, read_task
from plm_core.shared import paths
from tasks.reporting import diagnosis
from tasks.reporting.page import drawn, plotting, table

MOST_CLASSES = 8
"""More do not fit a picture."""
READING = """\
A score is the median over {seeds} fine-tunings from different seeds (least to greatest), and in brackets the interval \
that holds 95 % of the scores when examples and seeds are drawn anew (bootstrap). **Words alone** (`tfidf`) is a \
linear model on the words of the same examples: who does not beat it has gained nothing from being a language model. \
**Without reading** is the score of always giving the training examples' most frequent class or mean: who does not \
beat it has learned nothing about the task."""

Tables = dict[str, dict[str, Table]]
"""By task and model."""


def finetuned(
    models: Sequence[str], tasks: Mapping[str, str | None], seeds: Sequence[int]
) -> tuple[str, dict[str, str]]:
    """The section as Markdown, and its pictures by file name; ``tasks`` with those that each was learned after.

    Raises:
        UserError: evidence is missing or damaged.
    """
    if not tasks:
        return "## Fine-tuning\n\nNo GLUE-like task is named in `finetune.tasks`.", {}
    tables = {task: {model: _evidence(model, task, seeds) for model in models} for task in tasks}
    parts = ["## Fine-tuning", READING.format(seeds=len(seeds)), _summary(tables, models, seeds)]
    parts += _better(models, tasks, seeds)
    parts.append(diagnosis.READING)
    figures = {}
    for task, rows in tables.items():
        described = glue.read_task(paths.EXAMPLES / task)
        before = f" Learned after {tasks[task]}, with a new head." if tasks[task] else ""
        parts += [f"### {task}", described.question + before, _details(task, models, seeds), *_constant(rows)]
        classes = described.labels if all(isinstance(found.results, Answers) for found in rows.values()) else ()
        if 0 < len(classes) <= MOST_CLASSES:
            figures[f"confusion-{task}.svg"] = _confusions(rows, described.labels)
            parts.append(f"![Which classes of {task} are taken for which](confusion-{task}.svg)")
        more, pictures = diagnosis.behind(described, rows, {model: _metrics(model, task, seeds) for model in models})
        parts, figures = parts + more, figures | pictures
    return "\n\n".join(parts), figures


def _evidence(model: str, task: str, seeds: Sequence[int]) -> Table:
    """The answers of the fine-tunings in the parameters: a seed that was taken out leaves its file there."""
    files = [paths.EVIDENCE / model / f"{task}.{seed}.csv" for seed in seeds]
    return read_task(files)


def _summary(tables: Tables, models: Sequence[str], seeds: Sequence[int]) -> str:
    values = {task: [_metrics(model, task, seeds)["score"] for model in models] for task in tables}
    columns = [
        [f"{_spread(scores)} {_interval(tables[task][model])}" for model, scores in zip(models, each, strict=True)]
        for task, each in values.items()
    ]
    heads = ["model", *(f"{task}: {next(iter(rows.values())).results.score}" for task, rows in tables.items())]  # type: ignore[union-attr]
    if len(tables) > 1:
        means = [[tables[task][model].value for task in tables] for model in models]
        heads.append("mean")
        columns.append([f"{np.mean(scores):.3f}" for scores in means])
    lines = [[model, *cells] for model, *cells in zip(models, *columns, strict=True)]
    for title, name in (("words alone", "score"), ("without reading", "baseline")):
        guesses = [_read(f"baseline-{task}")[name] if _known(task) else None for task in tables]
        known = [value for value in guesses if value is not None]
        guesses += [float(np.mean(known)) if len(known) == len(tables) else None] if len(tables) > 1 else []
        lines.append([title, *("-" if value is None else f"{value:.3f}" for value in guesses)])
    without = [task for task in tables if not _known(task)]
    note = f"\n\nOf {', '.join(without)} there is no baseline: its stage left nothing." if without else ""
    return table(heads, lines) + note


def _known(task: str) -> bool:
    """Whether the stage baseline has left its evidence and its figures."""
    evidence = paths.WORDS / f"{task}.{paths.WORDS_SEED}.csv"
    return evidence.is_file() and (paths.METRICS / f"baseline-{task}.json").is_file()


def _better(models: Sequence[str], tasks: Mapping[str, str | None], seeds: Sequence[int]) -> list[str]:
    """Of each two models, which is better at what, beyond chance; words alone learn no task after another."""
    said = []
    alone = [task for task, before in tasks.items() if before is None and _known(task)]
    pairs = [(one, two, list(tasks)) for one, two in itertools.combinations(models, 2)]
    pairs += [(model, paths.WORDS.name, alone) for model in models if alone]
    for one, two, names in pairs:
        files = [f"{task}.{seed}.csv" for task in names for seed in {paths.WORDS_SEED, *seeds}]
        result = compare((paths.EVIDENCE / one, paths.EVIDENCE / two), (one, two), only=files)
        found = [
            f"**{row.better}** at {row.name} ({row.difference.value:+.3f}, "
            f"{row.difference.interval.low:+.3f} to {row.difference.interval.high:+.3f})"
            for row in [*result.tasks, *result.averages]
            if row.better
        ]
        said.append(f"- {one} and {two}: " + ("; ".join(found) or "no difference is beyond chance"))
    if not said:
        return []
    note = (
        "Who is better beyond chance (p < 0.05 on the same examples, by Holm's correction over the tasks); in brackets "
        "the second's score less the first's. `plm compare A B` tells more of two."
    )
    return [note, "\n".join(said)]


def _details(task: str, models: Sequence[str], seeds: Sequence[int]) -> str:
    """Every metric of a task, as the median over seeds."""
    found = {model: _metrics(model, task, seeds) for model in models}
    unshown = ("score", "baseline", "best_step")
    names = [name for name in found[models[0]] if name not in unshown and not name.startswith(diagnosis.CHECKS)]
    rows = []
    for model, each in found.items():
        counts = ("examples", "train_examples")
        cells = [f"{each[name][0]:,.0f}" if name in counts else _spread(each[name]) for name in names]
        rows.append([model, *cells, ", ".join(f"{step:,.0f}" for step in each["best_step"])])
    titles = {"examples": "test examples", "train_examples": "training examples"}
    return table(["model", *(titles.get(n, n.replace("_", " ")) for n in names), "best step, by seed"], rows)


def _constant(rows: Mapping[str, Table]) -> list[str]:
    """Which models give every example the same class."""
    said = []
    for model, found in rows.items():
        answers = found.results
        if not isinstance(answers, Answers) or not answers.classes:
            continue
        always = [answers.classes[int(each[0])] for each in answers.predictions if len(set(each)) == 1]
        if always:
            which, seeds = ", ".join(repr(name) for name in dict.fromkeys(always)), len(answers.predictions)
            said.append(f"**{model} always answers {which}** ({len(always)} of {seeds} fine-tunings).")
    return [" ".join(said)] if said else []


def _confusions(rows: dict[str, Table], labels: Sequence[str]) -> str:
    """True classes by answered ones, shares of each true class, all seeds together: a picture a model."""
    pyplot = plotting()
    side = 1.6 + 0.55 * len(labels)
    figure, all_axes = pyplot.subplots(
        1, len(rows), figsize=(side * len(rows) + 1, side), squeeze=False, layout="constrained", sharey=True
    )
    for axes, (model, found) in zip(all_axes[0], rows.items(), strict=True):
        shares = _shares(found, labels)
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        for (i, j), share in np.ndenumerate(shares):
            axes.text(j, i, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.6 else "black")
        axes.set(title=model, xlabel="answered", xticks=range(len(labels)), yticks=range(len(labels)))
        axes.set_xticklabels(labels, rotation=30, ha="right")
        axes.set_yticklabels(labels)
    all_axes[0][0].set_ylabel("true")
    return drawn(figure)


def _shares(found: Table, labels: Sequence[str]) -> np.ndarray:
    answers = found.results
    assert isinstance(answers, Answers)
    place = np.array([labels.index(name) if name in labels else -1 for name in answers.classes])
    counts = np.zeros((len(labels), len(labels)))
    for predictions in answers.predictions:
        np.add.at(counts, (place[answers.labels.astype(int)], place[predictions.astype(int)]), 1)
    return counts / np.maximum(1, counts.sum(axis=1, keepdims=True))


def _interval(found: Table) -> str:
    (draws,) = significance.bootstrap([found.results], significance.generator())
    interval = significance.interval(draws[""])
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _spread(values: Sequence[float]) -> str:
    """The median, and the least and the greatest where there are several."""
    around = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{median(values):.3f}{around}"


def _metrics(model: str, task: str, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Each number of the metrics files, by seed."""
    each = [_read(f"finetune-{model}-{task}-{seed}") for seed in seeds]
    return {name: [found[name] for found in each] for name in each[0]}


def _read(name: str) -> dict[str, float]:
    return json.loads((paths.METRICS / f"{name}.json").read_text(encoding="utf-8"))
