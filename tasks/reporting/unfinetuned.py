"""The report's sections on models without fine-tuning: minimal pairs, and what causal models answer to prompts.

All of it comes from the evidence, the metrics files and the parameters. Used by the stage report.
"""

import json
from collections.abc import Sequence
from typing import Any

from plm_core.benchmarks import task as glue
from plm_core.benchmarks.prompts import FewshotConfig, prompt_of
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
    names = [*models, paths.NGRAM.name]
    sets = []
    for name in params.section_names("pairs"):
        files = {model: paths.EVIDENCE / model / file_of(name) for model in names}
        found = {model: read_task([file]) for model, file in files.items() if file.is_file()}
        asked = [model for model in models if model in found]
        sizes: dict[str, int] = {}
        for table in list(found.values())[:1]:
            strata, subsets = table.results.strata, table.results.subsets
            sizes = {"": len(strata)} | {part: int((strata == i).sum()) for i, part in enumerate(subsets) if part}
        against = []
        for model in asked if paths.NGRAM.name in found else ():
            folders = (paths.NGRAM, paths.EVIDENCE / model)
            compared = compare(folders, (paths.NGRAM.name, model), only=[file_of(name)]).tasks[0]
            against.append({"second": model, "difference": compared.difference, "better": compared.better})
        sets.append(
            {
                "name": name,
                "without": [model for model in names if model not in found],
                "found": {model: _by_paradigm(table) for model, table in found.items()},
                "sizes": sizes,
                "groups": next(iter(found.values())).groups if found else 0,
                "ties": {model: ties for model, table in found.items() if (ties := table.predictions[0].count(TIE))},
                "apart": apart({model: found[model] for model in asked}, share) if asked else None,
                "against": against,
            }
        )
    return sets


def _by_paradigm(table: Table) -> dict[str, Estimate]:
    """The score of the whole set (""), and of each paradigm."""
    (draws,) = significance.bootstrap([table.results], significance.generator())
    values = score_by_subset(table.results)
    return {paradigm: Estimate(values[paradigm], significance.interval(draw)) for paradigm, draw in draws.items()}


def unfinetuned() -> dict[str, Any]:
    """The section's figures; those of a task by model and number of shots."""
    config = params.section("fewshot", FewshotConfig)
    tasks = config.asked(params.names("finetune.tasks"))
    if not (config.models and tasks and config.shots):
        return {"asked": False, "without": [], "tasks": []}
    files = {model: paths.METRICS / f"fewshot-{model}.json" for model in config.models}
    found = {model: json.loads(file.read_text("utf-8")) for model, file in files.items() if file.is_file()}
    told = []
    for name in tasks if found else []:
        task = glue.read_task(paths.EXAMPLES / name)
        figures = {
            (model, shots): {key.removeprefix(begin): value for key, value in each.items() if key.startswith(begin)}
            for model, each in found.items()
            for shots in config.shots
            for begin in [f"{name}/{shots}/"]
        }
        prompt = prompt_of(task, config.prompts)
        told.append({"name": name, "score": task.score, "prompt": prompt, "found": figures})
    return {"asked": True, "config": config, "without": [m for m in files if m not in found], "tasks": told}
