"""Stage report: one page, Markdown and HTML, from the metrics, curves and samples alone.

What people read in a pull request (`report.md`) or a browser (`report.html`, one file with everything in it). It
holds no time and no run id: the same results give the same bytes.
"""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plm_core.evaluation.evidence import LOSSY as PREFIX
from plm_core.files import atomic_folder
from plm_core.objectives import QUANTITIES
from plm_core.shared import paths
from tasks.reporting.fewshot import unfinetuned
from tasks.reporting.page import drawn, page, plotting, table
from tasks.reporting.scores import finetuned
from tasks.runtime.stage import main, stage
from tasks.settings import params

SECTIONS = ["models", "pretrain", "evaluate", "finetune.tasks", "finetune.transfers", "finetune.seeds", "fewshot"]
LOSSY = """**Lossy**: the tokenizer (wordpiece) does not keep all of a text: the bits are those of what it keeps, over \
the bytes of the whole text. Compare only models with this very tokenizer."""

LEGEND = """\
- **positions read**: steps, times rows, times the context. **Predictions trained on**: a causal model predicts at every
  position, a masked one at 15 % of them, a permutation model at one in six: that is how their papers train them.
- **bits per byte** of any kind: the model's surprise at held-out text, divided by the text's UTF-8 bytes; lower is
  better. Of whole documents, it compares models with different tokenizers too; of excerpts, which are cut by tokens, it
  does not, and **perplexity a token** never does.
- **macro-F1** weighs every class alike; **Matthews** is 0 for guessing and 1 for certainty; **Pearson** and
  **Spearman** are correlations of numbers and of their order.
- A blank's fillings are the likeliest pieces with their probabilities; `▁` is the space before a word
  (with wordpiece, `##` begins a piece that goes on with a word).
- **Bold** is the best of several models. Likelihoods, accuracies and samples are of the test split, which no training
  has seen and no checkpoint was chosen by; the curves' dots are of the validation split."""
READS = {
    "distinct_1": "distinct words",
    "distinct_2": "distinct pairs",
    "repeated_4": "repeated fours",
    "copied_8": "eights that stand in the training text",
    "longest_copy": "longest run of such words",
}
SAMPLES_NOTE = """\
Of the words of all continuations: how many differ, how many pairs of neighbours differ, how many runs of four stand \
in the same text before, how many runs of eight stand word for word in the training text."""
METERS_NOTE = f"""\
## Speed and cost

How fast each training ran, and what it took, differs from machine to machine, so it is none of these results. It stands
in [{paths.METERS}](../{paths.METERS.name}/index.html), on the machine that trained."""

METERS = f"""\
<object data="../{paths.METERS.name}/index.html" type="text/html" title="Speed and cost">
<p>No training has left its meters on this machine.</p>
</object>
"""
"""The page of the meters inside this one, where it lies beside it."""


def report() -> None:
    """Read the results of every model and GLUE-like task in the parameters and write the page."""
    models, seeds = params.names("models"), params.read("finetune.seeds")
    after = {each["task"]: each["after"] for each in params.read("finetune.transfers")}
    tasks = dict.fromkeys(params.names("finetune.tasks")) | after
    inputs = [paths.METRICS, paths.CURVES, paths.SAMPLES, paths.EVIDENCE]
    inputs += [paths.EXAMPLES] if tasks else []
    inputs += [paths.SLICES] if paths.SLICES.exists() else []  # what a failed stage did not leave is left out
    with stage("report", SECTIONS, inputs) as run, atomic_folder(paths.REPORT, checksums=False) as folder:
        scores, figures = finetuned(models, tasks, seeds)
        figures |= {f"{model}.svg": _figure(model, list(tasks), seeds) for model in models}
        sections = [
            _models(models),
            _likelihoods(models),
            scores,
            unfinetuned(),
            _curves(models),
            _samples(models),
            _corpus(),
            _reading(),
            METERS_NOTE,
        ]
        text = "\n\n".join(["# Language models: results", *sections]) + "\n"
        for name, figure in figures.items():
            (folder / name).write_text(figure, encoding="utf-8")
        (folder / "report.md").write_text(text, encoding="utf-8")
        html = page("Language models: results", text, figures, METERS)
        (folder / "report.html").write_text(html, encoding="utf-8")
        print(f"{paths.REPORT}/report.html and report.md: {len(models)} model(s), {len(tasks)} GLUE-like task(s)")
        run.outputs.append(paths.REPORT)


def _models(models: Sequence[str]) -> str:
    heads = [
        "model",
        "architecture",
        "objective",
        "parameters",
        "positions read",
        "predictions trained on",
        "best step",
    ]
    rows = []
    for model in models:
        section, trained = params.read(f"pretrain.{model}"), _metrics(f"pretrain-{model}")
        counts = [f"{trained[name]:,}" for name in ("parameters", "positions", "predictions", "best_step")]
        rows.append([model, section["architecture"], _objective(section["objective"]), *counts])
    return f"## Models\n\n{table(heads, rows)}"


def _objective(section: dict[str, Any]) -> str:
    options = [f"{name}: {json.dumps(value)}" for name, value in section.items() if name != "name"]
    return section["name"] + (f" ({', '.join(options)})" if options else "")


def _likelihoods(models: Sequence[str]) -> str:
    measured = [_metrics(f"evaluate-{model}") for model in models]
    quantities = dict.fromkeys(name for found in measured for name in found if name.endswith("bits_per_byte"))
    columns = {
        name.replace("_", " "): _best([f"{found[name]:.4f}" if name in found else "" for found in measured], min)
        for name in quantities
    }
    perplexities = [f"{found['perplexity']:.1f}" if "perplexity" in found else "" for found in measured]
    columns |= {"perplexity a token": perplexities} if any(perplexities) else {}
    corpus, excerpt = _metrics("deduplicate"), params.read("evaluate").get("excerpt")
    notes = [f"Held-out text: {corpus['test_bytes']:,} bytes, {corpus['test_documents']} documents."]
    if any(name.startswith("lossy") for name in quantities):
        unknown = next(found["unknown_rate"] for found in measured if "unknown_rate" in found)
        notes.append(f"{LOSSY} Unknown are {unknown:.3%} of its tokens.")
    if len(quantities) > 1:
        notes.append(
            "**Each column is another quantity, for each kind of model predicts a token from other text: compare "
            "within a column, never across.** What models of different papers have in common is the fine-tuning below."
        )
    rows = [[model, *cells] for model, *cells in zip(models, *columns.values(), strict=True)]
    meanings = "\n".join(_meaning(name, excerpt) for name in quantities)
    return "\n\n".join(["## Held-out likelihood", " ".join(notes), table(["model", *columns], rows), meanings])


def _meaning(name: str, excerpt: int | None) -> str:
    """What a quantity is, as an item of a list."""
    quantity = QUANTITIES[name.removeprefix(PREFIX)]
    cut = f", here of the first {excerpt:,} tokens of each document only" if excerpt and quantity.excerpt else ""
    return f"- **{name.replace('_', ' ')}**{cut}: {quantity.meaning}."


def _curves(models: Sequence[str]) -> str:
    images = [f"![Loss curves of {model}]({model}.svg)" for model in models]
    note = "Training loss at every report, validation loss as dots; the ring marks the checkpoint that was kept."
    return "\n\n".join(["## Loss curves", note, *images])


def _samples(models: Sequence[str]) -> str:
    parts = ["## Samples"]
    measured = {model: _metrics(f"evaluate-{model}") for model in models}
    if rows := [[model, *_reads(found)] for model, found in measured.items() if "longest_copy" in found]:
        parts += [SAMPLES_NOTE, table(["model", *READS.values()], rows)]
    for model in models:
        parts.append(f"### {model}")
        for sample in json.loads((paths.SAMPLES / f"{model}.json").read_text(encoding="utf-8")):
            parts.append(f"~~~~\n{_sample(sample)}\n~~~~")
    return "\n\n".join(parts)


def _reads(found: dict[str, Any]) -> list[str]:
    """The figures of a model's continuations; blank where they are too short for one."""
    return [f"{found[name]:.3f}" if isinstance(found.get(name), float) else f"{found.get(name, '')}" for name in READS]


def _sample(sample: dict[str, Any]) -> str:
    """A continuation, or a text with a blank and the likeliest pieces for it."""
    if "cloze" not in sample:
        return " ".join((sample["prompt"] + sample["continuation"]).split())
    fills = (f"{piece!r} {probability:.3f}" for piece, probability in sample["fills"])
    return f"{sample['cloze']}\n{', '.join(fills)}"


def _corpus() -> str:
    cleaned, left, tokens = _metrics("clean"), _metrics("deduplicate"), _metrics("pack")
    rows = [
        [split, f"{left[f'{split}_documents']:,}", f"{left[f'{split}_bytes']:,}", _count(tokens, f"{split}_tokens")]
        for split in ("train", "valid", "test")
    ]
    removed = [(rule, count) for metrics in (cleaned, left) for rule, count in metrics.items() if count]
    levels = {
        level: ", ".join(
            f"{count:,} {rule.removeprefix(prefix).replace('_', ' ')}"
            for rule, count in removed
            if rule.startswith(prefix := f"removed_{level}_")
        )
        for level in ("documents", "paragraphs")
    }
    note = (
        f"{cleaned['read_documents']:,} documents ({cleaned['read_bytes']:,} bytes) were read. Removed: documents: "
        f"{levels['documents'] or 'none'}; paragraphs: {levels['paragraphs'] or 'none'}. What was removed, and why, is "
        f"told by `{paths.CARD / 'README.md'}`. Tokenizer: {_metrics('tokenizer')['vocab_size']:,} pieces, "
        f"{_metrics('tokenizer')['bytes_per_token']:.2f} bytes a token on validation text."
    )
    return f"## Corpus\n\n{note}\n\n{table(['split', 'documents', 'bytes', 'tokens'], rows)}"


def _reading() -> str:
    return f"## How to read this\n\n{LEGEND}"


def _metrics(name: str) -> dict[str, Any]:
    return json.loads((paths.METRICS / f"{name}.json").read_text(encoding="utf-8"))


def _count(metrics: dict[str, Any], name: str) -> str:
    return f"{metrics[name]:,}" if name in metrics else "read as text"


def _best(cells: Sequence[str], best: Callable[[Iterable[float]], float]) -> list[str]:
    """The cells of a column with the best of them, as shown, in bold, unless all are; blank cells are no number."""
    numbers = [float(cell) for cell in cells if cell]
    if len(set(numbers)) < 2:
        return list(cells)
    return [f"**{cell}**" if cell and float(cell) == best(numbers) else cell for cell in cells]


def _figure(model: str, tasks: Sequence[str], seeds: Sequence[int]) -> str:
    """The curves of a model's trainings side by side, those of a task's seeds in one picture, as SVG."""
    pyplot = plotting()
    trainings = {model: [model], **{f"{model}-{task}": [f"{model}-{task}-{seed}" for seed in seeds] for task in tasks}}
    figure, all_axes = pyplot.subplots(
        1, len(trainings), figsize=(4.6 * len(trainings), 3.2), squeeze=False, layout="constrained"
    )
    for axes, (title, names) in zip(all_axes[0], trainings.items(), strict=True):
        for name in names:
            _draw(axes, name, None if len(names) == 1 else f"seed {name.rpartition('-')[2]}")
        axes.set(title=title, xlabel="step", ylabel="loss (nats)")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    return drawn(figure)


def _draw(axes: Any, name: str, seed: str | None) -> None:
    """One training: its loss as a line, its validations as dots, the best of them in a ring."""
    with (paths.CURVES / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    valid = [(int(r["step"]), float(r["valid_loss"])) for r in rows if r["valid_loss"]]
    (line,) = axes.plot(
        [int(r["step"]) for r in rows], [float(r["loss"]) for r in rows], lw=1.2, label=seed or "training"
    )
    color = line.get_color() if seed else None
    axes.plot(*zip(*valid, strict=True), "o-", ms=4, lw=1, color=color, label=None if seed else "validation")
    best = min(valid, key=lambda point: point[1])
    axes.plot(*best, "o", ms=10, mfc="none", color="black")
    axes.annotate(f"{best[1]:.3f}", best, textcoords="offset points", xytext=(-6, 9), ha="right")


if __name__ == "__main__":
    main(report)
