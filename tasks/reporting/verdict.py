"""What the report says first: which model is best by each quantity, how sure that is, and what beats it."""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_core.evaluation import pair_scoring, significance
from plm_core.evaluation.comparison import MEAN, Estimate
from plm_core.evaluation.evidence import COMPARED, LIKELIHOOD, LOSSY, read_likelihood
from plm_core.objectives import QUANTITIES
from plm_core.shared import paths
from tasks.reporting.worth import compared_rows

Figures = Mapping[str, Any]


def standings(
    models: Mapping[str, str],
    seeds: Sequence[int],
    finetuned: Figures,
    pair_sets: Sequence[Figures],
    likelihoods: Mapping[str, Figures],
    excerpt: int | None,
) -> list[dict[str, Any]]:
    """The figures of a sentence and a panel for each quantity: the tasks' mean score, the score of each set of minimal
    pairs, and each likelihood, which is given by model or baseline. ``models`` are given with their tokenizers."""
    listed = []
    # The tasks, with words alone if they were measured on the very same ones.
    tasks = [task["name"] for task in finetuned["tasks"]]
    alike = not finetuned["unknown"] and all(task["after"] is None for task in finetuned["tasks"])
    points: dict[str, Estimate | float] = {}
    for pair in (pair for pair in finetuned["pairs"] if alike or pair.second in models):
        row = (pair.averages or pair.tasks)[0]
        points |= {pair.first: row.first, pair.second: row.second}
    if points:
        files = [f"{task}.{seed}.csv" for task in tasks for seed in {paths.WORDS_SEED, *seeds}]
        title = f"mean score of {len(tasks)} tasks" if len(tasks) > 1 else f"score on {tasks[0]}"
        listed.append(_standing(title, models, points, files, MEAN if len(tasks) > 1 else tasks[0]))
    for pairs in pair_sets:
        points = {name: values[""] for name, values in pairs["found"].items()}
        if points.keys() & models.keys():
            file = pair_scoring.file_of(pairs["name"])
            listed.append(_standing(f"minimal pairs {pairs['name']}", models, points, [file], pairs["name"]))
    # Bits of excerpts, or of what a tokenizer keeps, say nothing about models with other tokenizers.
    for base, name in ((base, begin + base) for base in COMPARED for begin in ("", LOSSY)):
        points = {model: figures[name] for model, figures in likelihoods.items() if name in figures}
        used = {models[model] for model in points if model in models}
        if len(used) == 1 or (used and name == base and not (excerpt and QUANTITIES[base].excerpt)):
            for model in points:
                evidence = paths.EVIDENCE / model / LIKELIHOOD
                if evidence.is_file() and (table := read_likelihood(evidence)).metric.partition(" of ")[0] == name:
                    points[model] = Estimate(table.value, significance.interval_of(table.results))
            listed.append(_standing(name.replace("_", " "), models, points, [], "likelihood", lower=True))
    return listed


def label(name: str) -> str:
    """What people read for a model, or for a baseline by its name in the evidence."""
    name = f"5-gram ({name.removeprefix(paths.NGRAM)})" if name.startswith(paths.NGRAM) else name
    return "words alone" if name == paths.WORDS.name else name


def _standing(
    title: str, models: Figures, points: Mapping[str, Estimate | float], files: list[str], row: str, lower: bool = False
) -> dict[str, Any]:
    """All points, and as words which model is best and how it compares with the second and with each baseline."""
    rows = {}
    for name, of in points.items():
        ends = vars(of.interval) if isinstance(of, Estimate) else {"low": None, "high": None}
        rows[name] = {"name": label(name), "value": of.value if isinstance(of, Estimate) else of, **ends}
    best, *rest = sorted(filter(models.__contains__, rows), key=lambda name: rows[name]["value"], reverse=not lower)
    ahead, unsure, against = [], [], []
    for name in [*rest[:1], *(name for name in rows if name not in models)]:
        test = compared_rows(name, best, files).get(row)
        verdict = {None: "no difference shown", best: "better"}.get(test.better, "worse") if test else "not tested"
        change = rows[best]["value"] - rows[name]["value"]
        ahead += [label(name)] if change and (change > 0) == lower else []
        unsure += [label(name)] if verdict == "no difference shown" else []
        sure = f" ({_interval(vars(test.difference.interval), '+.3f')})" if test else ""
        against.append(f"{change:+.3f}{sure} against {label(name)}, {verdict}")
    if ahead:
        headline = f"no model beats {' or '.join(ahead)}; {best} comes closest"
    elif unsure:
        headline = f"{best} is ahead, but not shown to be better than {' and '.join(unsure)}"
    else:
        headline = f"{best} is best" if against else f"only {best} has it"
    value = f"{rows[best]['value']:.3f}"
    value += "" if rows[best]["low"] is None else f" ({_interval(rows[best], '.3f')})"
    lowest = " Lower is better." if lower and against else ""
    return {
        "title": title,
        "rows": list(rows.values()),
        "headline": f"{title[0].upper()}{title[1:]}: {headline}",
        "figures": f"{value}{': ' if against else ''}{'; '.join(against)}.{lowest}",
        "compared": bool(against),
    }


def _interval(ends: Figures, form: str) -> str:
    return f"{ends['low']:{form}} to {ends['high']:{form}}"
