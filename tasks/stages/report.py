"""Stage report: all results as HTML and as Markdown, and a summary. The same results give the same bytes."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

from plm_core.evaluation.evidence import LOSSY
from plm_core.evaluation.gate_rules import GateRules
from plm_core.objectives import QUANTITIES
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from plm_core.templates import render
from tasks.parameters import stage_parameters
from tasks.parameters.pretrain_config import pretrain_section
from tasks.reporting import charts
from tasks.reporting.cost_page import meters
from tasks.reporting.html_page import page
from tasks.reporting.scores import finetuned, metrics_of, pairs, unfinetuned
from tasks.reporting.verdict import label, standings
from tasks.reporting.worth import WORTH, worth
from tasks.runtime.stage import main, stage

FINETUNED = ["finetune.tasks", "finetune.transfers", "finetune.seeds", "finetune.features"]
SECTIONS = ["models", "tokenizers", "pretrain", "evaluate", *FINETUNED, "fewshot", "pairs", "promotion"]

FREQUENCIES = "token frequencies"


def report() -> None:
    """Read the results of every model and GLUE-like task in the parameters and write the page."""
    tokenizers = stage_parameters.models()
    models = list(tokenizers)
    seeds = stage_parameters.read("finetune.seeds")
    after = {transfer["task"]: transfer["after"] for transfer in stage_parameters.read("finetune.transfers")}
    tasks = dict.fromkeys(stage_parameters.name_list("finetune.tasks")) | after
    inputs = [paths.METRICS, paths.CURVES, paths.SAMPLES, paths.EVIDENCE]
    inputs += [paths.EXAMPLES] if tasks else []
    inputs += [paths.SLICES] if paths.SLICES.exists() else []  # missing if a stage failed
    with stage("report", SECTIONS, inputs, metrics=False) as run, atomic_folder(paths.REPORT, checksums=False) as new:
        reported = stage_parameters.without_parameter("promotion", "registered_model", GateRules).reported
        scores, pictures = finetuned(models, tasks, seeds, reported)
        trained = {model: metrics_of(f"pretrain-{model}") for model in models}
        panels: dict[str, list[dict[str, Any]]] = {"pretraining": []}
        for model in models:
            panels["pretraining"] += charts.losses(model, model, trained[model]["positions"])
            for task, seed in itertools.product(tasks, seeds):
                panels.setdefault(task, []).extend(charts.losses(model, f"{model}-{task}-{seed}"))
        for title, rows in panels.items():
            unit = "step" if title in tasks else "positions read"
            pictures[f"loss-{title}.svg"] = charts.curves(title, unit, rows, models)
        evaluated = {model: metrics_of(f"evaluate-{model}") for model in models}
        worth_it = worth(tokenizers, tasks)
        pair_sets = pairs(tokenizers, reported)
        likelihoods = _likelihoods(evaluated, tokenizers)
        # Token frequencies are too far from all others to compare anything with.
        by_name = evaluated | {name: of for name, of in likelihoods["simple"].items() if FREQUENCIES not in name}
        verdicts = standings(tokenizers, seeds, scores, pair_sets, by_name, likelihoods["excerpt"])
        for i, of in enumerate((of for of in verdicts if of["compared"]), 1):
            pictures[f"verdict-{i}.svg"] = charts.estimates(of["title"], of["rows"], models)
        described = {
            model: {
                "section": pretrain_section(model)[1],
                "trained": trained[model],
                "samples": json.loads((paths.SAMPLES / f"{model}.json").read_text(encoding="utf-8")),
            }
            for model in models
        }
        text = render(
            "tasks/reporting/templates/results.md.j2",
            models=described,
            verdicts=verdicts,
            panels=panels,
            label=label,
            worth=worth_it,
            finetuned=scores,
            pairs=pair_sets,
            fewshot=unfinetuned(),
            copied={model: metrics for model, metrics in evaluated.items() if "longest_copy" in metrics},
            corpus=_corpus(tokenizers),
            **likelihoods,
        )
        summary = render("tasks/reporting/templates/report.md.j2", models=described, verdicts=verdicts)
        files = {"report.md": summary, "results.md": text, "verdict.json": json.dumps(verdicts, indent=2) + "\n"}
        files["report.html"] = page("tasks/reporting/templates/report.html.j2", text, pictures, fold=True)
        files |= pictures | {WORTH.format(model): page_text for model, page_text in worth_it.items()}
        for name, content in files.items():
            (new / name).write_text(content, encoding="utf-8")
        print(f"{paths.REPORT}/report.html: {len(models)} model(s), {len(tasks)} GLUE-like task(s)")
        run.outputs.append(paths.REPORT)
    meters()


def _likelihoods(evaluated: dict[str, dict[str, Any]], tokenizers: Mapping[str, str]) -> dict[str, Any]:
    """The columns of the table (each with its cells by model), what they measure, and the rows of simple models."""
    names = dict.fromkeys(name for figures in evaluated.values() for name in figures if name.endswith("bits_per_byte"))
    columns = {name: _best(_cells(evaluated, name, ".4f")) for name in names}
    if any("perplexity" in figures for figures in evaluated.values()):
        columns["perplexity"] = _cells(evaluated, "perplexity", ".1f")
    # The results of the stage text-baseline, if it has run.
    simple: dict[str, dict[str, float]] = {}
    for tokenizer in dict.fromkeys(tokenizers.values()):
        if not (paths.METRICS / f"text-baseline-{tokenizer}.json").is_file():
            continue
        figures = metrics_of(f"text-baseline-{tokenizer}")
        part = f", of {figures['ppmd_share']:.2%} of the text" if "ppmd_share" in figures else ""
        for way, name in {
            "unigram": f"{FREQUENCIES} ({tokenizer})",
            "ngram": f"{paths.NGRAM}{tokenizer}",
            "ppmd": f"PPMd{part}",
        }.items():
            cells = {quantity: figures[f"{way}_{quantity}"] for quantity in names if f"{way}_{quantity}" in figures}
            simple |= {name: cells} if cells else {}
    return {
        "columns": columns,
        "quantities": {name: QUANTITIES[name.removeprefix(LOSSY)] for name in names},
        "unknown": list(
            dict.fromkeys(tokenizers[model] for model, figures in evaluated.items() if "unknown_rate" in figures)
        ),
        "excerpt": stage_parameters.read("evaluate").get("excerpt"),
        "simple": simple,
    }


def _cells(evaluated: dict[str, dict[str, Any]], name: str, form: str) -> dict[str, str]:
    return {model: format(figures[name], form) if name in figures else "" for model, figures in evaluated.items()}


def _best(cells: dict[str, str]) -> dict[str, str]:
    """A column with its lowest value, as shown, in bold, unless all are equal; empty cells do not count."""
    shown = {cell for cell in cells.values() if cell}
    least = min(shown, key=float) if len(shown) > 1 else None
    return {model: f"**{cell}**" if cell == least else cell for model, cell in cells.items()}


def _corpus(tokenizers: Mapping[str, str]) -> dict[str, Any]:
    read, left = metrics_of("clean"), metrics_of("deduplicate")
    counts = [(name, count) for metrics in (read, left) for name, count in metrics.items() if count]
    removed = {
        level: [(name.removeprefix(begin), count) for name, count in counts if name.startswith(begin)]
        for level, begin in (("documents", "removed_documents_"), ("paragraphs", "removed_paragraphs_"))
    }
    names = dict.fromkeys(tokenizers.values())
    spelled = {name: metrics_of(f"pack-{name}") | metrics_of(f"tokenizer-{name}") for name in names}
    return {"read": read, "left": left, "removed": removed, "tokenizers": spelled}


if __name__ == "__main__":
    main(report)
