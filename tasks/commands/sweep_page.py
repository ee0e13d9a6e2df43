"""The page of a sweep: ``python -m tasks.commands.sweep_page FOLDER``. ``plm sweep`` runs it when the trials are over.

FOLDER has the sweep's ``trials.json`` and Optuna's study, which Optuna plots.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from plm_core.templates import render
from tasks.reporting.html_page import figure_svg, page, plotting
from tasks.runtime.stage import main

FEWEST = 2
"""With fewer trials there are no pictures."""


def write(folder: Path) -> None:
    """Write ``sweep.html`` into FOLDER."""
    result = json.loads((folder / paths.TRIALS).read_text(encoding="utf-8"))
    metric = result["metric"]
    sign = 1 if result["direction"] == "lower" else -1
    complete = sorted((t for t in result["trials"] if t["state"] == "complete"), key=lambda t: sign * t["value"])
    best = pareto_front(complete, sign)
    figures = {}
    if len(complete) >= FEWEST:
        figures = study_plots(folder, metric)
        figure, axes = plotting().subplots(figsize=(9, 4), layout="constrained")
        for trial in complete:
            place = (trial["seconds"], trial["value"])
            axes.plot(*place, "o", color="#c0392b" if trial["number"] in best else "#3b78b5")
            axes.annotate(trial["number"], place, xytext=(4, 4), textcoords="offset points")
        axes.set(xlabel="seconds per trial", ylabel=metric)
        figures["front.svg"] = figure_svg(figure)
    text = render(
        "tasks/reporting/templates/sweep.md.j2",
        sweep=result,
        name=folder.name,
        best=complete[:1],
        trials=complete + [t for t in result["trials"] if t["state"] != "complete"],
        front=best,
        figures=list(figures),
        difference=(folder / paths.DIFFERENCE).read_text(encoding="utf-8").strip() if complete else "",
    )
    atomic_text(folder / "sweep.html", page("tasks/reporting/templates/sweep.html.j2", text, figures))


def pareto_front(trials: Sequence[Mapping[str, Any]], sign: int) -> list[int]:
    """The numbers of the trials, best first, that no other one beats in both the metric and the time."""
    kept: list[int] = []
    quickest = float("inf")
    for trial in sorted(trials, key=lambda t: (sign * t["value"], t["seconds"])):
        if trial["seconds"] < quickest:
            quickest = trial["seconds"]
            kept.append(trial["number"])
    return kept


def study_plots(folder: Path, metric: str) -> dict[str, str]:
    """Pictures of the study, as SVG by file name: the values of all trials, and how important each parameter is
    (fANOVA: Hutter et al. 2014)."""
    pyplot = plotting()
    import optuna
    from optuna.visualization.matplotlib import plot_parallel_coordinate

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / paths.STUDY}")
    with pyplot.rc_context({"text.parse_math": True}):  # powers of ten on an axis
        params = sorted(study.best_trial.params)  # whose names Optuna cuts off at the wrong end
        axes = plot_parallel_coordinate(study, params, target_name=metric)
        axes.set_title("")
        axes.set_xticklabels([metric, *(name.rpartition(".")[2] for name in params)])
        figure = pyplot.gcf()
        figure.set_size_inches(9, 4)
        figure.subplots_adjust(bottom=0.3)
        parallel = figure_svg(figure)
    importances = optuna.importance.get_param_importances(study)
    bars, axes = pyplot.subplots(figsize=(9, 1 + 0.4 * len(importances)), layout="constrained")
    axes.barh([*importances], [*importances.values()])
    axes.invert_yaxis()
    axes.set(xlabel=f"share of the variance of {metric}")
    return {"parallel.svg": parallel, "importance.svg": figure_svg(bars)}


if __name__ == "__main__":
    main(write)
