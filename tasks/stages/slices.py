"""Stage slices: what is known of a task's test examples without any model. `python -m tasks.stages.slices <task>`.

The length of each, its subset, and how much of it occurs in the text that the models were pretrained on. Used by the
report and the evaluation without fine-tuning.
"""

from plm_core.benchmarks.example_readers import file_of
from plm_core.benchmarks.task import read_examples, verified_task
from plm_core.evaluation.example_slices import COLUMNS, CONTAMINATED
from plm_core.evaluation.sealed_csv import write_rows
from plm_core.evaluation.train_overlap import overlaps, search_in
from plm_core.shared import paths
from tasks.runtime.stage import main, stage
from tasks.runtime.worker_pool import pool

TRAIN = paths.CORPUS / "train.parquet"


def slices(name: str) -> None:
    """Compare the test examples of ``examples.NAME`` with the training text, and write a row for each."""
    data = paths.EXAMPLES / name
    table = paths.SLICES / f"{name}.csv"
    with stage(f"slices-{name}", [], [data, TRAIN]) as run, pool(run) as workers:
        examples = read_examples(file_of(data, "test"), verified_task(data))
        texts = [[e.a] if e.b is None else [e.a, e.b] for e in examples]
        sizes, shares = overlaps(texts, search_in(TRAIN, workers))
        rows = zip(examples, sizes.tolist(), shares.tolist(), strict=True)
        write_rows(table, COLUMNS, ((e.id, size, e.subset, repr(share)) for e, size, share in rows))
        contaminated = int((shares >= CONTAMINATED).sum())
        some = int((shares > 0).sum())
        run.metrics |= {"test_examples": len(examples), "words": int(sizes.sum())}
        run.metrics |= {"overlapping": some, "contaminated": contaminated}
        run.outputs.append(table)
        print(
            f"{name}: {len(examples):,} test examples; {some:,} share 8 words in a row with the training text, "
            f"{contaminated:,} share most of theirs"
        )


if __name__ == "__main__":
    main(slices)
