"""How an experiment looks in MLflow's UI: a note that says what to look at, and views with the columns that matter.

The default view shows MLflow's own columns and cannot be configured: the UI keeps it in the browser. What can be set
are saved views (MLflow 3.15), in the menu `Views` and by links in the note. They are tags of the experiment. Used by
``store.py``.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from plm_core.config import UserError
from plm_core.shared.stores import NOTE
from plm_core.templates import render
from tasks.settings import params

VIEW = "mlflow.sharedViewState."
"""The prefix of the tag of a saved view."""
SIZES = ["parameters", "positions", "seconds", "joules", "cost"]
RECIPE = ["steps", "batch", "optimizer.name", "optimizer.learning_rate"]


class View(NamedTuple):
    """A table of the runs of one stage."""

    title: str
    stage: str
    sort: str
    """The column by which the runs are sorted, the highest first."""
    columns: list[str]
    groups: tuple[str, ...] = ()
    """The tags by which runs are grouped; the columns show the means of a group."""

    def tag(self) -> str:
        """The tag as MLflow's UI stores it."""
        keys = [{"mode": "tag", "groupByData": name} for name in self.groups]
        state = {
            "searchFilter": f"tags.`plm.stage` = '{self.stage}'",
            "orderByKey": self.sort,
            "orderByAsc": False,
            "selectedColumns": self.columns,
            "columnOrder": self.columns,
            "groupBy": {"aggregateFunction": "average", "groupByKeys": keys} if keys else None,
        }
        return json.dumps({"name": self.title, "createdAt": 0, "state": json.dumps(state)})


def tags(experiment: str, present: Mapping[str, str]) -> dict[str, str]:
    """The tags that an experiment with this id lacks. An existing note stays: a person may have written it."""
    views = _views()
    wanted = {f"{VIEW}{name}": view.tag() for name, view in views.items()}
    if NOTE not in present:
        wanted[NOTE] = render("tasks/tracking/templates/experiment.md.j2", experiment=experiment, views=views)
    return {name: value for name, value in wanted.items() if present.get(name) != value}


def _views() -> dict[str, View]:
    """The views, by their names in addresses."""
    paper = [_tag(name) for name in ("plm.model", "plm.architecture", "plm.objective")]
    recipe = [f"params.`pretrain.training.{name}`" for name in RECIPE]
    origin = ["attributes.`Dataset`", _tag("plm.data"), "attributes.`Version`"]
    compared = ["score"]  # the metrics that the gate may compare
    with contextlib.suppress(UserError, TypeError):
        compared += [f"{task}/score" for task in params.read("finetune.tasks")]
        compared += params.read("promotion.metrics")
    shown = map(_metric, [*dict.fromkeys(compared), *SIZES])
    judged = ["attributes.`Models`", *paper, _tag("gate"), *shown, *recipe, *origin]
    trained = [*paper, *map(_metric, ["valid_loss", *SIZES, "tokens_per_second"]), *recipe, *origin]
    tuned = [_tag("plm.seed"), *map(_metric, ("score", "baseline", "examples", "best_step")), *origin]
    return {
        "models": View("Models, as the gate saw them", "register", _metric("score"), judged),
        "pretrainings": View("Pretraining runs", "pretrain", "attributes.start_time", trained),
        "fine-tunings": View(
            "Fine-tuning runs, by model and task", "finetune", _metric("score"), tuned, ("plm.model", "plm.task")
        ),
    }


def _metric(name: str) -> str:
    return f"metrics.`{name}`"


def _tag(name: str) -> str:
    return f"tags.`{name}`"
