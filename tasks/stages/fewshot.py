"""Stage fewshot: what a causal model answers without fine-tuning. `python -m tasks.stages.fewshot <name>`.

Every task of `fewshot.tasks`, or of `finetune.tasks` if none are named, is evaluated with every number of shots. The
stage writes a folder with a file ``<task>.<shots>.csv`` for each, and metrics ``<task>/<shots>/<figure>``.
"""

from plm_core import checkpoint
from plm_core.benchmarks.example_readers import file_of, sample
from plm_core.benchmarks.prompts import GOES_ON, FewshotConfig, prompt_of
from plm_core.benchmarks.task import read_examples, verified_task
from plm_core.config import UserError
from plm_core.evaluation.example_slices import read_slices
from plm_core.evaluation.fewshot_scoring import COLUMNS, PromptedTask, answers, evidence_rows, measured
from plm_core.evaluation.sealed_csv import write_rows
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from plm_core.training.device import prepare
from tasks.parameters import stage_parameters
from tasks.runtime.stage import Progress, main, stage


def fewshot(name: str) -> None:
    """Ask the model NAME, one of ``fewshot.models`` in params.yaml; write its answers and their figures."""
    config = stage_parameters.section("fewshot", FewshotConfig)
    names = config.task_names(stage_parameters.name_list("finetune.tasks"))
    stage_parameters.require_examples("fewshot.tasks", names)
    stage_parameters.require_examples("fewshot.prompts", config.prompts)
    folder = paths.MODELS / name
    data = [place for task in names for place in (paths.EXAMPLES / task, paths.SLICES / f"{task}.csv")]
    with stage(f"fewshot-{name}", ["fewshot", "finetune.tasks"], [folder, *data], model=name) as run:
        config.require_ranker(name, checkpoint.describe(folder).objective)
        tasks = []
        for task_name in names:
            examples = paths.EXAMPLES / task_name
            task = verified_task(examples)
            prompt = prompt_of(task, config.prompts)
            train, test = (read_examples(file_of(examples, split), task) for split in ("train", "test"))
            if not train or not test:
                expected = "another task (fewshot.tasks)"
                raise UserError(f"{examples}: has no training or no test examples; expected {expected}")
            if prompt is not GOES_ON and ("{b}" in prompt.template) != (test[0].b is not None):
                expected = (
                    "no {b}, because it has one text" if test[0].b is None else "{b} too, because it has two texts"
                )
                where = f"fewshot.prompts.{task_name}.template"
                raise UserError(f"{where}: found {prompt.template!r}; expected {expected}")
            test = sample(test, config.examples)
            facts = read_slices(paths.SLICES / f"{task_name}.csv")
            overlaps = [facts[example.id].overlap for example in test]
            tasks.append(PromptedTask(task, prompt, test, overlaps, train, config.seed, config.words))
        device = prepare(threads=1).device
        loaded = checkpoint.load(folder, device)
        pairs = [(prompted, shots) for prompted in tasks for shots in config.shots]
        progress = Progress(f"fewshot-{name}", len(pairs))
        with atomic_folder(paths.FEWSHOT / name, checksums=False) as new:
            for done, (prompted, shots) in enumerate(pairs, start=1):
                results = answers(prompted, shots, loaded, device)
                write_rows(new / f"{prompted.task.name}.{shots}.csv", COLUMNS, evidence_rows(prompted.task, results))
                figures = measured(prompted, shots, results, config.contaminated)
                run.metrics |= {f"{prompted.task.name}/{shots}/{key}": value for key, value in figures.items()}
                note = f"{figures['examples']} examples, {figures['excluded']} left out"
                if "score" in figures:
                    scores = f"{figures['score']:.3f}, without reading {figures['baseline']:.3f}"
                    note = f"{prompted.task.score} {scores}, {note}"
                progress.update(done, f"{prompted.task.name}, {shots} shots: {note}")
        run.outputs.append(paths.FEWSHOT / name)


if __name__ == "__main__":
    main(fewshot, gpus=1)
