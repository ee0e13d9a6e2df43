"""Stage slices: one row per test example, with the overlap of its texts with the training split."""

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import read_examples, write_examples
from plm_core.benchmarks.task_table import TASKS
from plm_core.corpus.document import read_documents
from plm_core.evaluation.example_slices import read_slices
from plm_core.shared.files import write_checksums


def test_a_row_stands_for_every_test_example(built):
    for name in ("sotu-era", "next"):
        task = TASKS[name].task
        examples = read_examples(built.root / f"artifacts/examples/{name}/test.jsonl", task)
        slices = read_slices(built.root / f"artifacts/slices/{name}.csv")
        assert list(slices) == [e.id for e in examples]
        assert [f.words for f in slices.values()] == [len(f"{e.a} {e.b or ''}".split()) for e in examples]
        counted = built.metrics(f"slices-{name}")
        assert counted["test_examples"] == len(examples)
        assert counted["overlapping"] == sum(f.overlap > 0 for f in slices.values())
        assert counted["contaminated"] == sum(f.overlap >= 0.5 for f in slices.values())


def test_slices_mark_examples_in_the_training_text(small):
    """Among the test examples, a paragraph that occurs in the training split: after an edit of the corpus, say."""
    train = next(iter(read_documents(small.root / "artifacts/corpus/splits/train.parquet")))
    folder, task = small.root / "artifacts/examples/sotu-era", TASKS["sotu-era"].task
    seen, new = train.text.split("\n\n")[0], "One two three."
    write_examples(folder / "test.jsonl", [Example("known", seen, None, 0), Example("new", new, None, 1)], task)
    (folder / "SHA256SUMS").unlink()
    write_checksums(folder)
    small.run("tasks.stages.slices", "sotu-era")
    slices = read_slices(small.root / "artifacts/slices/sotu-era.csv")
    assert {name: f.overlap for name, f in slices.items()} == {"known": 1.0, "new": 0.0}
