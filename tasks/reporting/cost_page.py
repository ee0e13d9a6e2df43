"""The page on what training runs cost: ``python -m tasks.reporting.cost_page``.

Written by the stage report, and by ``plm run`` at its end, when MLflow knows the runs. Not by training stages: they
would have to run again whenever the wording of the page changes.
"""

import sys

from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from plm_core.templates import render
from tasks.parameters import stage_parameters
from tasks.reporting import charts
from tasks.reporting.html_page import page
from tasks.reporting.training_costs import read


def meters() -> None:
    """Write ``artifacts/meters/index.html`` from the files of all training runs; a full disk is only a warning."""
    trainings = [training for file in sorted(paths.METERS.glob("*.json")) if (training := read(file)) is not None]
    links = {training.stage: link for training in trainings if (link := _link(training.stage))}
    # The same losses as in the report, whose pictures may not depend on this machine.
    taken = {training.stage.removeprefix("pretrain-"): training for training in trainings if training.finished}
    minutes = {name: taken[name].seconds / 60 for name in taken if (paths.CURVES / f"{name}.csv").is_file()}
    models = [model for model in stage_parameters.models() if model in minutes] if minutes else []
    rows = [row for model in models for row in charts.losses(model, model, minutes[model])]
    figures = {"minutes.svg": charts.curves("pretraining", "minutes", rows, models)} if rows else {}
    text = render("tasks/reporting/templates/costs.md.j2", trainings=trainings, links=links, figures=figures)
    try:
        atomic_text(paths.METERS / "index.html", page("tasks/reporting/templates/costs.html.j2", text, figures))
    except OSError as error:
        print(f"warning: {paths.METERS}: {error}; the page of the meters is not written", file=sys.stderr, flush=True)


def _link(stage: str) -> str | None:
    """The address of the training run in MLflow; None if MLflow does not have it yet."""
    try:
        return (paths.RUN_LINKS / f"{stage}.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return None


if __name__ == "__main__":
    meters()
