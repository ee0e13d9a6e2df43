"""The report's sections on scores: fine-tuned models with the details of each task, minimal pairs, answers to prompts.

All of it comes from the evidence, example by example, and from examples, slices and metrics files.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_core.benchmarks import task as glue
from plm_core.benchmarks.behaviour_checks import TOLERANCE
from plm_core.benchmarks.example_readers import file_of
from plm_core.benchmarks.prompts import FewshotConfig, prompt_of
from plm_core.benchmarks.task import read_examples
from plm_core.config import UserError
from plm_core.evaluation import pair_scoring, significance
from plm_core.evaluation.answers import Answers, is_numeric_score, score_by_subset
from plm_core.evaluation.calibration import bins, calibration
from plm_core.evaluation.comparison import Estimate, compare
from plm_core.evaluation.evidence import Table, read_task, task_files
from plm_core.evaluation.example_counts import TIE
from plm_core.evaluation.example_slices import CONTAMINATED, Slice, read_slices, slices
from plm_core.shared import paths
from tasks.parameters import stage_parameters
from tasks.reporting import charts

MOST_CLASSES = 8
CHECKS = "checks/"
UNSHOWN = ("score", "baseline", "best_step")
FEWEST = 20
"""For fewer examples no score is shown: its interval would contain almost any value."""
WORST = 5
LETTERS = 160
RESAMPLES = 2_000
"""For the interval of a slice: there are many slices, and their intervals are wide."""
LIMITS = {"contaminated": CONTAMINATED, "fewest": FEWEST, "tolerance": TOLERANCE}


def metrics_of(name: str) -> dict[str, Any]:
    """The content of the metrics file of a stage with this name."""
    return json.loads((paths.METRICS / f"{name}.json").read_text(encoding="utf-8"))


def finetuned(
    models: Sequence[str], tasks: Mapping[str, str | None], seeds: Sequence[int], share: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """The figures of the section, and its pictures by file name. ``tasks`` maps each task to the one that it was
    fine-tuned after, if any. The gate never sees ``share`` of the examples.

    Raises:
        UserError: evidence, examples or slices are missing, damaged or not of the same examples.
    """
    # By seed: the file of a seed that was removed from the parameters is still there.
    files = {(m, t): [paths.EVIDENCE / m / f"{t}.{seed}.csv" for seed in seeds] for m in models for t in tasks}
    tables = {task: {model: read_task(files[model, task]) for model in models} for task in tasks}
    pictures: dict[str, str] = {}
    details = []
    for name, rows in tables.items():
        task = glue.read_task(paths.EXAMPLES / name)
        metrics = {}
        for model in models:
            by_seed = [metrics_of(f"finetune-{model}-{name}-{seed}") for seed in seeds]
            metrics[model] = {metric: [values[metric] for values in by_seed] for metric in by_seed[0]}
        results: dict[str, Any] = {model: table.results for model, table in rows.items()}
        # Behind the score: slices, checks, confusions, calibration.
        parts = sliced(name, rows.values())
        checks = dict.fromkeys(m.split("/")[1] for figures in metrics.values() for m in figures if m.startswith(CHECKS))
        classes = task.labels if all(isinstance(answers, Answers) for answers in results.values()) else ()
        confusions = _confusions(results, task.labels) if 0 < len(classes) <= MOST_CLASSES else {}
        if confusions:
            pictures[f"confusion-{name}.svg"] = charts.heat_maps(confusions, "answered", "true class", "blues", 1)
        calibrations = {}
        sure = {model: np.asarray(table.confidences, dtype=float) for model, table in rows.items()}
        if not any(np.isnan(confidences).any() for confidences in sure.values()):
            answers = {model: (sure[model], results[model].right()) for model in models}
            calibrations = {model: calibration(*pair) for model, pair in answers.items()}
            # Of all seeds together; bins are of equally many answers.
            binned = {model: bins(*(of.ravel() for of in pair))[1:] for model, pair in answers.items()}
            places = [(model, place) for model, pair in binned.items() for place in np.transpose(pair).tolist()]
            points = [{"name": model, "sure": sure, "right": right} for model, (sure, right) in places]
            pictures[f"reliability-{name}.svg"] = charts.reliability(points, models)
        shown = metrics[models[0]]
        details.append(
            {
                "name": name,
                "after": tasks[name],
                "question": task.question,
                "kind": task.kind,
                "score": results[models[0]].score,
                "metrics": metrics,
                "shown": [metric for metric in shown if metric not in UNSHOWN and not metric.startswith(CHECKS)],
                "groups": rows[models[0]].groups,
                "apart": _apart(rows, share),
                "intervals": {model: significance.interval_of(answers) for model, answers in results.items()},
                "constant": {model: always for model, answers in results.items() if (always := _constant(answers))},
                "confusions": list(zip(*confusions.values(), strict=True)),
                "slices": parts if parts is None else [_shown(part) for part in parts],
                "worst": _worst(task, rows),
                "checks": {check: [_failed(own, CHECKS + check) for own in metrics.values()] for check in checks},
                "calibrations": calibrations,
            }
        )
    # What is known without a model: the stage baseline's answers, where it has run.
    words = {task: paths.WORDS / f"{task}.{paths.WORDS_SEED}.csv" for task in tasks}
    judged = [t for t, file in words.items() if file.is_file() and (paths.METRICS / f"baseline-{t}.json").is_file()]
    guesses: dict[str, list[float | None]] = {}
    for figure in ("score", "baseline"):
        row: list[Any] = [metrics_of(f"baseline-{t}")[figure] if t in judged else None for t in tasks]
        mean = [float(np.mean(row)) if len(judged) == len(tasks) else None] if len(tasks) > 1 else []
        guesses[figure] = [*row, *mean]
    # Every two models on all tasks, and each with words alone, except on tasks learned after another.
    alone = [task for task in judged if tasks[task] is None]
    pairs = [(*two, list(tasks)) for two in itertools.combinations(models, 2)] if tasks else []
    pairs += [(model, paths.WORDS.name, alone) for model in models if alone]
    compared = []
    for first, second, names in pairs:
        only = [f"{task}.{seed}.csv" for task in names for seed in {paths.WORDS_SEED, *seeds}]
        compared.append(compare((paths.EVIDENCE / first, paths.EVIDENCE / second), (first, second), only=only))
    # All scores in one picture, by their distance from words alone, or from a constant answer where that is missing.
    cells: list[dict[str, Any]] = []
    for detail, guess in zip(details, guesses["score"], strict=False):
        values: dict[str, Any] = {model: np.mean(figures["score"]) for model, figures in detail["metrics"].items()}
        values["without reading"] = detail["metrics"][models[0]]["baseline"][0]
        values |= {} if guess is None else {"words alone": guess}
        base = values.get("words alone", values["without reading"])
        cells += [{"model": m, "task": detail["name"], "value": v, "shade": v - base} for m, v in values.items()]
    if cells:
        far = max(0.05, *(abs(cell["shade"]) for cell in cells if cell["model"] in models))
        pictures["scores.svg"] = charts.heat_maps({"": cells}, "model", "task", "redblue", far)
    several = models if len(tables) > 1 else ()
    section = {
        "models": list(models),
        "seeds": len(seeds),
        "features": (stage_parameters.read("finetune").get("features") or {}).get("models", []),
        "limits": LIMITS,
        "tasks": details,
        "means": {model: np.mean([rows[model].value for rows in tables.values()]) for model in several},
        "guesses": guesses,
        "unknown": [task for task in tasks if task not in judged],
        "pairs": compared,
    }
    return section, pictures


def sliced(task: str, tables: Iterable[Table]) -> list[tuple[Slice, ...]] | None:
    """The slices of a task's test examples, of each table in turn; None if the stage slices has not run.

    Raises:
        UserError: the output of the stage slices lacks an example.
    """
    path = paths.SLICES / f"{task}.csv"
    if not path.is_file():
        return None
    facts = read_slices(path)
    columns: list[list[Slice]] = []
    for table in tables:
        if missing := [name for name in table.ids if name not in facts]:
            raise UserError(
                f"{path}: lacks the example {missing[0]!r}; run its stage again (`dvc repro slices@{task}`)"
            )
        columns.append(slices([facts[name] for name in table.ids], table.results))
    return list(zip(*columns, strict=True))


def score_of(part: Slice) -> float:
    """The mean score over seeds on the examples of a slice."""
    return float(part.results.values(np.ones((1, int(part.members.sum())))).mean())


def _shown(parts: Sequence[Slice]) -> dict[str, Any]:
    """A slice with each model's score and its interval, or why there is none."""
    examples = int(parts[0].members.sum())
    scores: list[Estimate | str] = []
    for part in parts:
        if examples < FEWEST or not part.scored:
            scores.append("too few" if examples < FEWEST else "equal labels")
        else:
            scores.append(Estimate(score_of(part), significance.interval_of(part.results, resamples=RESAMPLES)))
    return {"kind": parts[0].kind, "name": parts[0].name, "examples": examples, "scores": scores}


def _apart(rows: Mapping[str, Table], share: float) -> dict[str, Any] | None:
    """How many examples the gate never sees, and each model's score on them; None if it sees all."""
    parts = {model: part for model, table in rows.items() if (part := table.parted(share)[1])}
    if not parts:
        return None
    some = next(iter(parts.values()))
    scores = {m: Estimate(part.value, significance.interval_of(part.results)) for m, part in parts.items()}
    return {"examples": len(some.examples), "groups": some.groups, "scores": scores}


def _constant(answers: Any) -> list[str]:
    """The class of each seed that gives the same answer to every example."""
    if not isinstance(answers, Answers) or not answers.classes:
        return []
    return [answers.classes[int(seed[0])] for seed in answers.predictions if len(set(seed)) == 1]


def _failed(metrics: Mapping[str, Sequence[float]], check: str) -> tuple[int, Estimate]:
    """How many checks a model was asked, and the share of them that it fails."""
    checks = int(metrics[f"{check}/asked"][0])
    share = float(np.mean(metrics[f"{check}/failed"])) / checks
    return checks, Estimate(share, significance.wilson(share, checks))


def _worst(task: glue.GlueTask, rows: Mapping[str, Table]) -> list[dict[str, Any]]:
    """The examples on which each model is most confidently wrong, or furthest off, with their texts."""
    path = file_of(paths.EXAMPLES / task.name, "test")
    examples = {example.id: example for example in read_examples(path, task)}
    listed = []
    for model, table in rows.items():
        results: Any = table.results
        if is_numeric_score(results.score):
            how = np.abs(results.predictions - results.labels).mean(axis=0)
            places = np.argsort(-how, kind="stable")[:WORST].tolist()
            answers = {i: f"{results.predictions[:, i].mean():.3g}" for i in places}
        else:
            # A seed that is right counts as 0.
            right = results.right()
            wrong = np.where(right, 0.0, np.nan_to_num(np.asarray(table.confidences, dtype=float)))
            how = wrong.mean(axis=0)
            places = [i for i in np.argsort(-how, kind="stable")[:WORST].tolist() if not right[:, i].all()]
            answers = {i: table.predictions[wrong[:, i].argmax()][i] for i in places}
        for i in places:
            if (name := table.ids[i]) not in examples:
                raise UserError(f"{path}: lacks the example {name!r}; run `dvc repro finetune` again")
            texts = {"label": table.labels[i], "answer": answers[i], "a": examples[name].a, "b": examples[name].b}
            row = {"model": model, "id": name, "how": float(how[i])}
            listed.append(row | {key: _cut(text) for key, text in texts.items()})
    return listed


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LETTERS else f"{text[:LETTERS].rsplit(maxsplit=1)[0]} ..."


def _confusions(results: Mapping[str, Answers], labels: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The confusion matrix of each model, cell by cell: shares of each true class, all seeds together."""
    matrices = {}
    for model, answers in results.items():
        place = np.array([labels.index(name) if name in labels else -1 for name in answers.classes])
        counts = np.zeros((len(labels), len(labels)))
        for predictions in answers.predictions:
            np.add.at(counts, (place[answers.labels.astype(int)], place[predictions.astype(int)]), 1)
        shares = (counts / np.maximum(1, counts.sum(axis=1, keepdims=True))).tolist()
        matrices[model] = [
            {"true class": labels[i], "answered": labels[j], "value": share, "shade": share}
            for i, row in enumerate(shares)
            for j, share in enumerate(row)
        ]
    return matrices


def pairs(models: Mapping[str, str], share: float) -> list[dict[str, Any]]:
    """The figures of each set of minimal pairs, for the models (given with their tokenizers) and for the 5-grams.

    The gate never sees ``share`` of the documents.
    """
    ngrams = {model: f"{paths.NGRAM}{tokenizer}" for model, tokenizer in models.items()}
    names = [*models, *dict.fromkeys(ngrams.values())]
    sets = []
    for name in stage_parameters.section_names("pairs"):
        file = pair_scoring.file_of(name)
        files = {model: task_files(paths.EVIDENCE / model, [file]) for model in names}
        tables = {model: read_task(paths_of[name]) for model, paths_of in files.items() if paths_of}
        judged = [model for model in models if model in tables]
        sizes: dict[str, int] = {}
        for table in list(tables.values())[:1]:
            strata, subsets = table.results.strata, table.results.subsets
            sizes = {"": len(strata)} | {part: int((strata == i).sum()) for i, part in enumerate(subsets) if part}
        by_paradigm = {}
        for model, table in tables.items():
            (draws,) = significance.bootstrap([table.results], significance.generator())
            values = score_by_subset(table.results)
            by_paradigm[model] = {part: Estimate(values[part], significance.interval(d)) for part, d in draws.items()}
        against = []
        for model in (model for model in judged if ngrams[model] in tables):
            both = (ngrams[model], model)
            folders = (paths.EVIDENCE / both[0], paths.EVIDENCE / model)
            compared = compare(folders, both, only=[file]).tasks[0]
            against.append({"second": model, "difference": compared.difference, "better": compared.better})
        sets.append(
            {
                "name": name,
                "without": [model for model in names if model not in tables],
                "found": by_paradigm,
                "sizes": sizes,
                "groups": next(iter(tables.values())).groups if tables else 0,
                "ties": {model: ties for model, table in tables.items() if (ties := table.predictions[0].count(TIE))},
                "apart": _apart({model: tables[model] for model in judged}, share),
                "against": against,
            }
        )
    return sets


def unfinetuned() -> dict[str, Any]:
    """The figures of the answers to prompts; those of a task by model and number of shots."""
    config = stage_parameters.section("fewshot", FewshotConfig)
    tasks = config.task_names(stage_parameters.name_list("finetune.tasks"))
    if not (config.models and tasks and config.shots):
        return {"asked": False, "without": [], "tasks": []}
    files = {model: paths.METRICS / f"fewshot-{model}.json" for model in config.models}
    metrics = {model: json.loads(file.read_text("utf-8")) for model, file in files.items() if file.is_file()}
    details = []
    for name in tasks if metrics else []:
        task = glue.read_task(paths.EXAMPLES / name)
        figures = {
            (model, shots): {key.removeprefix(begin): value for key, value in measured.items() if key.startswith(begin)}
            for model, measured in metrics.items()
            for shots in config.shots
            for begin in [f"{name}/{shots}/"]
        }
        prompt = prompt_of(task, config.prompts)
        details.append({"name": name, "score": task.score, "prompt": prompt, "found": figures})
    return {"asked": True, "config": config, "without": [m for m in files if m not in metrics], "tasks": details}
