"""Stage examples: the examples of one GLUE-like task, split and checked. `python -m tasks.stages.examples <task>`.

It reads the section ``examples.<task>`` and writes a folder: a file of JSON lines per split, ``task.json``, which
describes the task, and ``checks.jsonl``, further texts with what is expected of the answers. Fine-tuning and the report
read only this folder.
"""

import re
import sys
from pathlib import Path

from plm_core.benchmarks.behaviour_checks import FILE, checks_of, write_checks
from plm_core.benchmarks.example_readers import file_of
from plm_core.benchmarks.task import ExamplesConfig, write_examples, write_task
from plm_core.benchmarks.task_sources import counts, read_source, shared_text_counts
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage


def examples(name: str) -> None:
    """Read the section ``examples.NAME`` of params.yaml; write its examples and count them."""
    section = f"examples.{name}"
    stage_parameters.section_names("examples")
    config = stage_parameters.section(section, ExamplesConfig)
    folder = paths.EXAMPLES / name
    with stage(f"examples-{name}", [section], [Path(config.input)]) as run:
        source = read_source(name, config)
        checks = checks_of(source.task, source.splits["test"], Path(config.input))
        with atomic_folder(folder) as new:
            write_task(new, source.task)
            for split, some in source.splits.items():
                write_examples(file_of(new, split), some, source.task)
            write_checks(new / FILE, checks)
        for split, some in source.splits.items():
            run.metrics |= {_metric(key): value for key, value in counts(source.task, split, some).items()}
        overlap = shared_text_counts(source.task, source.splits)
        run.metrics |= overlap | source.counts | {"checks": len(checks)}
        run.outputs.append(folder)
        for warning in source.warnings:
            print(f"warning: {warning}", file=sys.stderr, flush=True)
        sizes = ", ".join(f"{len(some):,} {split}" for split, some in source.splits.items())
        *both, groups = (f"{n:,} of {key.replace('_', ' ')}" for key, n in overlap.items())
        print(f"{name}: {sizes} examples; the same texts: {', '.join(both)}; {groups}")
        if number := overlap["test_groups_also_in_train"]:
            why = "the scores do not show what a model can do with new ones"
            print(f"warning: {name}: {number:,} groups of test are also in train: {why}", file=sys.stderr)


def _metric(name: str) -> str:
    """A name that MLflow accepts: any other character in the name of a class becomes its code, such as _2b for +."""
    return re.sub(r"[^\w\-. :/]", lambda match: f"_{ord(match.group()):x}", name)


if __name__ == "__main__":
    main(examples)
