"""Was it worth it? Compares a model trained further with its start as published, a model from scratch, and words."""

from collections.abc import Mapping

from plm_core.config import UserError
from plm_core.evaluation import pair_scoring
from plm_core.evaluation.comparison import Compared, compare
from plm_core.shared import paths
from plm_core.templates import render
from tasks.parameters import stage_parameters
from tasks.parameters.pretrain_config import pretrain_section

WORTH = "worth-{}.md"
"""The file in the report's folder with what is said of a model."""
PUBLISHED, SCRATCH = "as published", "from scratch"


def worth(models: Mapping[str, str], tasks: Mapping[str, str | None]) -> dict[str, str]:
    """For each model that was trained further from a start, the section of the report that says what that was worth.

    ``models`` are given with their tokenizers, ``tasks`` with the task that each was fine-tuned after, if any.
    """
    sections = {model: pretrain_section(model)[0] for model in models}
    seeds = {paths.WORDS_SEED, *stage_parameters.read("finetune.seeds")}
    only = [f"{task}.{seed}.csv" for task in tasks for seed in seeds]
    only += [pair_scoring.file_of(name) for name in stage_parameters.section_names("pairs")]
    pages = {}
    for model, section in sections.items():
        if section.start is None or not section.training.steps:
            continue
        # What the model is compared with, by column heading, if such models exist.
        others: dict[str, list[str]] = {PUBLISHED: [], SCRATCH: []}
        for other, its in sections.items():
            if its.start == section.start and not its.training.steps:
                others[PUBLISHED].append(other)
            alike = its.architecture == section.architecture and models[other] == models[model]
            if its.start is None and alike and its.objective == section.objective:
                others[SCRATCH].append(other)
        columns = {way: names[0] for way, names in others.items() if names}
        compared = {way: compared_rows(name, model, only) for way, name in columns.items()}
        alone = [name for name in only if tasks.get(name.partition(".")[0]) is None]
        words = compared_rows(paths.WORDS.name, model, alone) | compared_rows(
            f"{paths.NGRAM}{models[model]}", model, only
        )
        compared |= {"words alone": words} if words else {}
        rows = list(dict.fromkeys(name for metrics in compared.values() for name in metrics))
        pages[model] = render(
            "tasks/reporting/templates/worth.md.j2",
            model=model,
            columns=columns,
            compared=compared,
            own={name: next(metrics[name] for metrics in compared.values() if name in metrics) for name in rows},
            published=PUBLISHED,
        )
    return pages


def compared_rows(other: str, model: str, only: list[str]) -> dict[str, Compared]:
    """What both were measured on, by its name: the model's numbers are the second ones."""
    try:
        result = compare((paths.EVIDENCE / other, paths.EVIDENCE / model), (other, model), only=only)
    except UserError:  # nothing in common
        return {}
    whole = (row for row in result.tasks if row.holm is not None)  # without subsets
    return {row.name: row for row in (*result.likelihood, *whole, *result.averages)}
