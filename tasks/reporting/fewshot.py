"""The report's section on what models answer without fine-tuning. All of it comes from the metrics files of the stage
fewshot and from the parameters. Used by the stage report.
"""

import json
from collections.abc import Mapping

from plm_core.benchmarks.prompts import FewshotConfig, Prompt, prompt_of
from plm_core.benchmarks.task import read_task
from plm_core.shared import paths
from tasks.reporting.page import table
from tasks.settings import params

HEADING = "## Without fine-tuning"
READING = """\
What a causal model answers without having learned the task: the option that it finds likeliest behind the prompt, \
after so many answered training examples (**shots**). Options differ in length, and are not equally likely by \
themselves, so there are four ways to choose: by the log-likelihood of the whole option (**sum**), by that divided by \
its bytes or its tokens, and by how much more likely the example's text makes it (**unconditional**). In brackets the \
interval that holds 95 % of the scores when examples are drawn anew (bootstrap). **Without reading** is the score of \
always giving the training examples' most frequent class. Other wordings give other scores."""
COUNTS = """\
**Left out** are test examples of which too large a share of eight words in a row stands in the training text \
({share}); the last column of scores is of all. A prompt longer than the model's context loses shots, then its \
beginning: **fewer shots** counts the examples that lost some, **no shot** those that lost all, and **not whole** \
those of which only a part was shown{words}."""
RULES = {
    "score": "sum",
    "score_per_byte": "per byte",
    "score_per_token": "per token",
    "score_unconditional": "unconditional",
}
NUMBERS = {
    "examples": "test examples",
    "excluded": "left out",
    "fewer_shots": "fewer shots",
    "no_shot": "no shot",
    "cut": "not whole",
}

Rows = Mapping[tuple[str, int], Mapping[str, float]]
"""The figures of each model and number of shots."""


def unfinetuned() -> str:
    """The section as Markdown."""
    config = params.section("fewshot", FewshotConfig)
    models, shots, tasks = config.models, config.shots, config.asked(params.names("finetune.tasks"))
    if not (models and tasks and shots):
        return f"{HEADING}\n\nNothing is asked: `fewshot` names no model, task or number of shots."
    files = {model: paths.METRICS / f"fewshot-{model}.json" for model in models}
    without = [model for model, file in files.items() if not file.is_file()]
    found = {model: json.loads(file.read_text("utf-8")) for model, file in files.items() if model not in without}
    note = [f"Of {', '.join(without)} there are no answers: the stage fewshot left nothing."] if without else []
    if not found:
        return "\n\n".join([HEADING, *note])
    share = "none" if config.contaminated is None else f"{config.contaminated:g} or more"
    words = "" if config.words is None else f" (at most {config.words} words of each text)"
    parts = [HEADING, READING, *note, COUNTS.format(share=share, words=words)]
    for name in tasks:
        task = read_task(paths.EXAMPLES / name)
        rows = {(model, each): _figures(figures, name, each) for model, figures in found.items() for each in shots}
        parts += [f"### {name}: {task.score}", _wording(prompt_of(task, config.prompts)), _scores(rows), _counts(rows)]
    return "\n\n".join(parts)


def _wording(prompt: Prompt) -> str:
    if not prompt.options:
        return f"~~~~\n{prompt.template} ...\n~~~~\n\nOptions: the choices of each example."
    options = ", ".join(f"{option!r} for {label}" for label, option in prompt.options.items())
    return f"~~~~\n{prompt.template} ...\n~~~~\n\nOptions: {options}."


def _figures(figures: Mapping[str, float], task: str, shots: int) -> dict[str, float]:
    begin = f"{task}/{shots}/"
    return {key.removeprefix(begin): value for key, value in figures.items() if key.startswith(begin)}


def _scores(rows: Rows) -> str:
    """The baseline is one, for all models see the same examples."""
    lines = [
        [model, str(shots), *(_score(each, key) for key in RULES), f"{each['all_score']:.3f}"]
        for (model, shots), each in rows.items()
    ]
    first = next(iter(rows.values()))
    guess = f"{first['baseline']:.3f}" if "baseline" in first else "-"
    lines.append(["without reading", "", *[guess] * len(RULES), f"{first['all_baseline']:.3f}"])
    return table(["model", "shots", *RULES.values(), "sum, of all"], lines)


def _counts(rows: Rows) -> str:
    lines = [[model, str(shots), *(f"{each[name]:,}" for name in NUMBERS)] for (model, shots), each in rows.items()]
    return table(["model", "shots", *NUMBERS.values()], lines)


def _score(figures: Mapping[str, float], key: str) -> str:
    """A score with its interval; a dash where every example is left out."""
    if key not in figures:
        return "-"
    return f"{figures[key]:.3f} [{figures[f'{key}_low']:.3f}, {figures[f'{key}_high']:.3f}]"
