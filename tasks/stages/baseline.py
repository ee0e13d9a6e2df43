"""Stage baseline: a GLUE-like task without a language model. `python -m tasks.stages.baseline <task>`.

A linear model on words is trained on the same examples as every model. Its answers are evidence like theirs, under the
name ``tfidf``, so ``plm compare gpt tfidf`` works.
"""

import math

from plm_core.benchmarks.example_readers import SPLITS, file_of, sample
from plm_core.benchmarks.task import read_examples, verified_task
from plm_core.evaluation.evidence import TASK_COLUMNS
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.finetuning import finetune_results, linear_baselines
from plm_core.finetuning.finetune_config import PARAMETERS, FinetuneConfig
from plm_core.finetuning.task_heads import Predicted
from plm_core.shared import paths
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage


def baseline(name: str) -> None:
    """Fit the linear model to the examples of ``examples.NAME``; write its evidence and metrics."""
    config = stage_parameters.section("finetune", FinetuneConfig)
    data = paths.EXAMPLES / name
    evidence = paths.WORDS / f"{name}.{paths.WORDS_SEED}.csv"
    sections = [f"finetune.{parameter}" for parameter in PARAMETERS]
    with stage(f"baseline-{name}", sections, [data]) as run:
        task = verified_task(data)
        limits = {"train": config.train_examples}
        train, valid, test = (
            sample(read_examples(file_of(data, split), task), limits.get(split, config.heldout_examples))
            for split in SPLITS
        )
        finetune_results.require_scorable(task, "test", test)
        predicted = Predicted(*linear_baselines.predict(task, train, valid, test), loss=math.nan)
        run.metrics |= finetune_results.measured(task, train, test, predicted)
        write_sealed(evidence, TASK_COLUMNS, finetune_results.evidence(task, test, predicted, config.measured([data])))
        score, without = run.metrics["score"], run.metrics["baseline"]
        signed = finetune_results.signed(task, test)
        print(f"{name}: {signed} {score:.3f} with words alone, {without:.3f} without reading, {len(test)} examples")
        run.outputs.append(evidence)


if __name__ == "__main__":
    main(baseline)
