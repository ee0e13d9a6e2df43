"""The report's section on minimal pairs: which text of each pair a model finds more likely, by paradigm.

All of it comes from the evidence. Used by the stage report.
"""

from collections.abc import Sequence
from typing import Any

from plm_core.evaluation import significance
from plm_core.evaluation.answers import score_by_subset
from plm_core.evaluation.comparison import Estimate, compare
from plm_core.evaluation.evidence import Table, read_task
from plm_core.evaluation.minimal_pairs import file_of
from plm_core.evaluation.spans import TIE
from plm_core.shared import paths
from tasks.reporting.scores import apart
from tasks.settings import params


def minimal_pairs(models: Sequence[str], share: float) -> list[dict[str, Any]]:
    """The section's figures, one item per set; the gate never sees ``share`` of the documents."""
    return [_set(name, models, share) for name in params.section_names("pairs")]


def _set(name: str, models: Sequence[str], share: float) -> dict[str, Any]:
    names = [*models, paths.NGRAM.name]
    files = {model: paths.EVIDENCE / model / file_of(name) for model in names}
    found = {model: read_task([file]) for model, file in files.items() if file.is_file()}
    asked = [model for model in models if model in found]
    sizes: dict[str, int] = {}
    for table in list(found.values())[:1]:
        strata, subsets = table.results.strata, table.results.subsets
        sizes = {"": len(strata)} | {name: int((strata == i).sum()) for i, name in enumerate(subsets) if name}
    return {
        "name": name,
        "without": [model for model in names if model not in found],
        "found": {model: _by_paradigm(table) for model, table in found.items()},
        "sizes": sizes,
        "groups": next(iter(found.values())).groups if found else 0,
        "ties": {model: ties for model, table in found.items() if (ties := table.predictions[0].count(TIE))},
        "apart": apart({model: found[model] for model in asked}, share) if asked else None,
        "against": [_against(model, name) for model in asked if paths.NGRAM.name in found],
    }


def _by_paradigm(table: Table) -> dict[str, Estimate]:
    """The score of the whole set (""), and of each paradigm."""
    (draws,) = significance.bootstrap([table.results], significance.generator())
    values = score_by_subset(table.results)
    return {paradigm: Estimate(values[paradigm], significance.interval(draw)) for paradigm, draw in draws.items()}


def _against(model: str, name: str) -> dict[str, Any]:
    """A model compared with the 5-gram."""
    folders = (paths.NGRAM, paths.EVIDENCE / model)
    found = compare(folders, (paths.NGRAM.name, model), only=[file_of(name)]).tasks[0]
    return {"second": model, "difference": found.difference, "better": found.better}
