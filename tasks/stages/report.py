"""Stage report: one page with all results, as Markdown and as HTML. The same results give the same bytes."""

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plm_core.evaluation.evidence import LOSSY
from plm_core.evaluation.gate_rules import GateRules
from plm_core.objectives import QUANTITIES
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from plm_core.templates import render
from tasks.parameters import stage_parameters
from tasks.parameters.pretrain_config import pretrain_section
from tasks.reporting.cost_page import meters
from tasks.reporting.html_page import figure_svg, page, plotting
from tasks.reporting.scores import finetuned, metrics_of, pairs, unfinetuned
from tasks.reporting.worth import WORTH, worth
from tasks.runtime.stage import main, stage

FINETUNED = ["finetune.tasks", "finetune.transfers", "finetune.seeds", "finetune.features"]
SECTIONS = ["models", "tokenizers", "pretrain", "evaluate", *FINETUNED, "fewshot", "pairs", "promotion"]


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
        pictures |= {f"{model}.svg": _figure(model, list(tasks), seeds) for model in models}
        evaluated = {model: metrics_of(f"evaluate-{model}") for model in models}
        worth_it = worth(tokenizers, tasks)
        text = render(
            "tasks/reporting/templates/report.md.j2",
            models={
                model: {
                    "section": pretrain_section(model)[1],
                    "trained": metrics_of(f"pretrain-{model}"),
                    "samples": json.loads((paths.SAMPLES / f"{model}.json").read_text(encoding="utf-8")),
                }
                for model in models
            },
            worth=worth_it,
            finetuned=scores,
            pairs=pairs(tokenizers, reported),
            fewshot=unfinetuned(),
            copied={model: metrics for model, metrics in evaluated.items() if "longest_copy" in metrics},
            corpus=_corpus(tokenizers),
            **_likelihoods(evaluated, tokenizers),
        )
        for model, page_text in worth_it.items():
            (new / WORTH.format(model)).write_text(page_text, encoding="utf-8")
        for name, picture in pictures.items():
            (new / name).write_text(picture, encoding="utf-8")
        (new / "report.md").write_text(text, encoding="utf-8")
        html = page("tasks/reporting/templates/report.html.j2", text, pictures)
        (new / "report.html").write_text(html, encoding="utf-8")
        print(f"{paths.REPORT}/report.html and report.md: {len(models)} model(s), {len(tasks)} GLUE-like task(s)")
        run.outputs.append(paths.REPORT)
    meters()


def _likelihoods(evaluated: dict[str, dict[str, Any]], tokenizers: Mapping[str, str]) -> dict[str, Any]:
    """The columns of the table (each with its cells by model), what they measure, and the rows of simple models."""
    names = dict.fromkeys(name for figures in evaluated.values() for name in figures if name.endswith("bits_per_byte"))
    columns = {name: _best(_cells(evaluated, name, ".4f")) for name in names}
    if any("perplexity" in figures for figures in evaluated.values()):
        columns["perplexity"] = _cells(evaluated, "perplexity", ".1f")
    # The results of the stage text-baseline, if it has run.
    simple: dict[str, dict[str, str]] = {}
    for tokenizer in dict.fromkeys(tokenizers.values()):
        if not (paths.METRICS / f"text-baseline-{tokenizer}.json").is_file():
            continue
        figures = metrics_of(f"text-baseline-{tokenizer}")
        part = f", of {figures['ppmd_share']:.2%} of the text" if "ppmd_share" in figures else ""
        for way, label in {
            "unigram": f"token frequencies ({tokenizer})",
            "ngram": f"5-gram ({tokenizer})",
            "ppmd": f"PPMd{part}",
        }.items():
            cells = {name: format(figures[f"{way}_{name}"], ".4f") for name in names if f"{way}_{name}" in figures}
            simple |= {label: cells} if cells else {}
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


def _figure(model: str, tasks: Sequence[str], seeds: Sequence[int]) -> str:
    """The curves of a model's training runs side by side, as SVG; all seeds of a task are in one plot.

    A training run is its loss as a line and its validations as dots, with a ring around the one that was kept.
    """
    pyplot = plotting()
    trainings = {model: [model], **{f"{model}-{task}": [f"{model}-{task}-{seed}" for seed in seeds] for task in tasks}}
    figure, all_axes = pyplot.subplots(
        1, len(trainings), figsize=(4.6 * len(trainings), 3.2), squeeze=False, layout="constrained"
    )
    for axes, (title, names) in zip(all_axes[0], trainings.items(), strict=True):
        for name in names:
            with (paths.CURVES / f"{name}.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            valid = {int(r["step"]): float(r["valid_loss"]) for r in rows if r["valid_loss"]}
            (kept,) = (int(r["step"]) for r in rows if r["best"] == "1")
            steps, losses = ([of(r[key]) for r in rows] for key, of in (("step", int), ("loss", float)))
            # Of several seeds, loss and validations have one colour and one name.
            alone = len(names) == 1
            label = "training" if alone else f"seed {name.rpartition('-')[2]}"
            (line,) = axes.plot(steps, losses, lw=1.2, label=label)
            same = {"label": "validation"} if alone else {"color": line.get_color()}
            axes.plot(*zip(*valid.items(), strict=True), "o-", ms=4, lw=1, **same)
            axes.plot(kept, valid[kept], "o", ms=10, mfc="none", color="black")
            place = {"textcoords": "offset points", "xytext": (-6, 9), "ha": "right"}
            axes.annotate(f"{valid[kept]:.3f}", (kept, valid[kept]), **place)
        axes.set(title=title, xlabel="step", ylabel="loss (nats)")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    return figure_svg(figure)


if __name__ == "__main__":
    main(report)
