"""Stage fewshot: what a causal model answers without fine-tuning. `python -m tasks.fewshot <name>`.

Every task of `fewshot.tasks` is asked with every number of shots. It writes a folder with a file
``<task>.<shots>.csv`` each, and metrics ``<task>/<shots>/<figure>``.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from plm_core import checkpoint
from plm_core.config import BadInput, did_you_mean
from plm_core.evaluation.fewshot import COLUMNS, Asked, answers, measured, rows
from plm_core.evaluation.slices import read_slices
from plm_core.files import atomic_folder, verify_checksums
from plm_core.finetuning.examples import file_of, read_examples, sample
from plm_core.finetuning.prompts import GOES_ON, FewshotConfig, prompt_of
from plm_core.finetuning.task import read_task
from plm_core.training.device import prepare
from tasks.seam import params, paths
from tasks.seam.evidence import write_rows
from tasks.seam.progress import Meter
from tasks.seam.stage import main, stage

PARAMETERS = ("tasks", "shots", "examples", "words", "contaminated", "seed", "prompts")
"""What a result depends on: not the list of models, so that adding one reruns no other."""


def fewshot(name: str) -> None:
    """Ask the model that stage pretrain made; write its answers and their figures."""
    config = params.section("fewshot", FewshotConfig)
    _require_known("fewshot.tasks", config.tasks)
    _require_known("fewshot.prompts", config.prompts)
    folder, sections = paths.MODELS / name, [f"fewshot.{parameter}" for parameter in PARAMETERS]
    data = [place for task in config.tasks for place in (paths.EXAMPLES / task, _slices(task))]
    with stage(f"fewshot-{name}", sections, [folder, *data], paths.METRICS / f"fewshot-{name}.json") as run:
        if (objective := checkpoint.describe(folder).objective) != "causal":
            raise BadInput(
                f"fewshot.models: {name} is a {objective} model, which says of no text how likely it follows another; "
                "expected causal ones: take it out"
            )
        tasks = [_asked(task, config) for task in config.tasks]
        device = prepare(threads=1).device
        loaded = checkpoint.load(folder, device)
        pairs = [(asked, shots) for asked in tasks for shots in config.shots]
        with atomic_folder(paths.FEWSHOT / name, checksums=False) as new, Meter(f"fewshot-{name}", len(pairs)) as meter:
            for done, (asked, shots) in enumerate(pairs, start=1):
                found = answers(asked, shots, loaded, device)
                write_rows(new / f"{asked.task.name}.{shots}.csv", COLUMNS, rows(asked.task, found))
                figures = measured(asked, shots, found, config.contaminated)
                run.metrics |= {f"{asked.task.name}/{shots}/{key}": value for key, value in figures.items()}
                meter.update(done, _told(asked, shots, figures))
        run.outputs.append(paths.FEWSHOT / name)
        run.tracker.checkpoint_metrics(loaded.digest, {f"fewshot/{key}": value for key, value in run.metrics.items()})


def _require_known(where: str, tasks: Iterable[str]) -> None:
    known = params.section_names("examples")
    for task in tasks:
        if task not in known:
            hint = did_you_mean(task, known)
            raise BadInput(f"{where}: found {task!r}; expected sections of examples: {', '.join(known)}{hint}")


def _slices(task: str) -> Path:
    return paths.SLICES / f"{task}.csv"


def _asked(name: str, config: FewshotConfig) -> Asked:
    """A task with its prompt and examples; BadInput when it cannot be asked, or a file of it is missing or damaged."""
    folder = paths.EXAMPLES / name
    verify_checksums(folder)
    task = read_task(folder)
    prompt = prompt_of(task, config.prompts)
    train, test = (read_examples(file_of(folder, split), task) for split in ("train", "test"))
    if not train or not test:
        raise BadInput(f"{folder}: holds no example to train on or to test; expected another task (fewshot.tasks)")
    if prompt is not GOES_ON and ("{b}" in prompt.template) != (test[0].b is not None):
        expected = "no {b}, for it has one text" if test[0].b is None else "{b} too, for it has two texts"
        raise BadInput(f"fewshot.prompts.{name}.template: found {prompt.template!r}; expected {expected}")
    test, facts = sample(test, config.examples), read_slices(_slices(name))
    overlaps = [facts[example.id].overlap for example in test]
    return Asked(task, prompt, test, overlaps, train, config.seed, config.words)


def _told(asked: Asked, shots: int, figures: dict[str, float]) -> str:
    """One line of what was found."""
    left = f"{figures['examples']} examples, {figures['excluded']} left out"
    if "score" not in figures:
        return f"{asked.task.name}, {shots} shots: {left}"
    said = f"{asked.task.score} {figures['score']:.3f}, without reading {figures['baseline']:.3f}"
    return f"{asked.task.name}, {shots} shots: {said}, {left}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a causal model answers without fine-tuning.")
    parser.add_argument("name", help="one of `fewshot.models` in params.yaml")
    arguments = parser.parse_args()
    main(lambda: fewshot(arguments.name))
