"""GLUE's nine tasks, from the official files and from the hub: the same examples, every quirk, every error."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import ExamplesConfig, write_examples
from plm_core.benchmarks.task_sources import read_source
from plm_core.benchmarks.task_table import TASKS
from plm_core.config import UserError

NAMES = [name for name, row in TASKS.items() if row.published and row.published.hub]
HEADERS = {
    "cola": ["source", "label", "mark", "sentence"],
    "sst2": ["sentence", "label"],
    "mrpc": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
    "qqp": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    "stsb": [
        *("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"),
    ],
    "mnli": [
        *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
        *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
    ],
    "qnli": ["index", "question", "sentence", "label"],
    "rte": ["index", "sentence1", "sentence2", "label"],
    "wnli": ["index", "sentence1", "sentence2", "label"],
}
"""As the files of the official download begin; CoLA's do not say it."""
HUB = {"cola": ("sentence", None), "sst2": ("sentence", None), "qqp": ("question1", "question2")} | {
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
}
"""The columns of texts on the hub where they are not sentence1 and sentence2."""
TEXTS = [
    'a "quoted word',
    "it 's a journey . ",
    "None",
    "nan",
    " NA",
    "\u2028a\u2028b\x85",
    "'\"",
    "naïve",
    "a  b",
    '""',
]
PARTS = {"train": 37, "dev": 13, "dev_matched": 7, "dev_mismatched": 5}


def parts_of(name):
    return [part.file for part in TASKS[name].published.parts]


def rows_of(name, part):
    """The columns of a task's rows as its files have them, with the class id or number under ``written``."""
    row = TASKS[name]
    columns = row.published.columns
    for i in range(PARTS[part]):
        label = i % len(row.task.labels) if row.task.labels else (i * 7 % 51) / 10
        if not row.task.labels:
            written = f"{label:.3f}"
        else:
            written = row.task.labels[label] if name in ("mnli", "qnli", "rte") else str(label)
        fields = dict.fromkeys(HEADERS[name], "x") | {columns.a: TEXTS[i % 10] + part, columns.label: written}
        if columns.b:
            fields[columns.b] = TEXTS[i % 7] + " second"
        yield fields, label


def write_official(folder, name):
    folder.mkdir(exist_ok=True)
    for part in parts_of(name):
        lines = [HEADERS[name]] if name != "cola" else []
        lines += [list(fields.values()) for fields, _ in rows_of(name, part)]
        text = "\n".join("\t".join(line) for line in lines)
        # The last line of CoLA's dev.tsv has no end.
        (folder / f"{part}.tsv").write_text(text + ("" if name == "cola" else "\n"), encoding="utf-8", newline="")
    return folder


def write_hub(folder, name, official):
    """A clone of the hub's dataset with what an independent reader finds in official files; returns its manifest."""
    import datasets

    published, labels = TASKS[name].published, TASKS[name].task.labels
    a, b = HUB.get(name, ("sentence1", "sentence2"))
    label = datasets.ClassLabel(names=list(labels)) if labels else datasets.Value("float32")
    text = datasets.Value("string")
    features = {a: text} | ({b: text} if b else {}) | {"label": label, "idx": datasets.Value("int32")}
    files = []
    for part in published.parts:
        with (official / f"{part.file}.tsv").open(encoding="utf-8", newline="\n") as file:
            lines = (line.removesuffix("\n").split("\t") for line in file)
            header = HEADERS[name] if name == "cola" else next(lines)
            rows = [dict(zip(header, line, strict=True)) for line in lines]
        columns = published.columns
        values = [row[columns.label] for row in rows]
        table = {a: [row[columns.a] for row in rows]} | ({b: [row[columns.b] for row in rows]} if b else {})
        if labels:
            table["label"] = [labels.index(value) if value in labels else int(value) for value in values]
        else:
            table["label"] = [float(value) for value in values]
        table["idx"] = list(range(len(rows)))
        (folder / name).mkdir(parents=True, exist_ok=True)
        data = datasets.Dataset.from_dict(table, features=datasets.Features(features))
        data.to_parquet(folder / name / f"{part.hub}-00000-of-00001.parquet")
        files.append(f"  - {{split: {part.hub}, path: '{name}/{part.hub}-*'}}\n")
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{''.join(files)}---\n")
    return write_manifest(folder.with_suffix(".json"), dataset=str(folder))


def write_manifest(path, **changes):
    pin = {"dataset": "nyu-mll/glue", "revision": "0" * 40, "license": "other", "homepage": "here"}
    path.write_text(json.dumps(pin | changes))
    return path


def read(name, source):
    return read_source(name, ExamplesConfig(str(source)))


def written(source, folder):
    folder.mkdir()
    for split, examples in source.splits.items():
        write_examples(folder / split, examples, source.task)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_glue_from_files_and_hub_is_byte_identical(tmp_path, name):
    official = write_official(tmp_path / "official", name)
    files, hub = read(name, official), read(name, write_hub(tmp_path / "hub", name, official))
    assert written(files, tmp_path / "a") == written(hub, tmp_path / "b")
    assert (files.counts, files.warnings) == (hub.counts, hub.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_glue_rows_become_examples(tmp_path, name):
    source = read(name, write_official(tmp_path / "official", name))
    columns = TASKS[name].published.columns
    expected = {}
    for part in parts_of(name):
        for i, (fields, label) in enumerate(rows_of(name, part), start=1):
            b = fields[columns.b].strip() if columns.b else None
            expected[f"{part}-{i}"] = Example(
                f"{part}-{i}",
                fields[columns.a].strip(),
                b,
                label,
                part.removeprefix("dev").removeprefix("_").removeprefix("train"),
            )
    splits = source.splits
    assert {e.id: replace(e, group="") for examples in splits.values() for e in examples} == expected
    assert all(e.id.startswith("dev") for e in splits["test"])
    assert all(e.id.startswith("train-") for e in splits["train"] + splits["valid"])
    assert len(splits["test"]) == sum(PARTS[part] for part in parts_of(name) if part != "train")
    assert {e.subset for e in splits["test"]} == ({"matched", "mismatched"} if name == "mnli" else {""})


def test_broken_rows_of_qqp_are_dropped_and_counted_and_both_sources_agree(tmp_path):
    official = write_official(tmp_path / "official", "qqp")
    whole = read("qqp", official)
    lines = (official / "train.tsv").read_text(encoding="utf-8").split("\n")
    lines[5:5] = ["7\t1\t2\tHow is", 'it?\tWhat "is?\t0', "8\t1\t2\t \tIs that so?\t0"]
    (official / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    source = read("qqp", official)
    assert source.splits == whole.splits
    assert source.counts == whole.counts | {
        "train_rows": 38,
        "train_dropped_wrong_fields": 2,
        "train_dropped_empty_text": 1,
    }
    assert "qqp: train: rows dropped, as official readers do: 1 for empty_text, 2 for wrong_fields" in source.warnings
    # The dataset on the hub was made without the ragged rows, but with empty texts.
    lines[5:7] = []
    (official / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    hub = read("qqp", write_hub(tmp_path / "hub", "qqp", official))
    assert written(hub, tmp_path / "a") == written(source, tmp_path / "b")
    assert hub.counts["train_rows"] == 38


def edit(path, number, line):
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[number - 1] = line
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "number", "line", "error"),
    [
        ("sst2", 3, "fine\tpositive", r"train\.tsv:3: the label 'positive' .*one of 0 \(negative\), 1 \(positive\)"),
        ("sst2", 1, "sentense\tlabel", r"train\.tsv:2: no column 'sentence'; found .*did you mean 'sentense'\?"),
        ("sst2", 1, "a\ta", r"train\.tsv:1: the name 'a' appears twice"),
        ("cola", 1, "gj04\t2\t\tHe.", r"train\.tsv:1: the label '2' .*0 \(unacceptable\), 1 \(acceptable\)"),
        ("rte", 4, "1\ta\tb\tentailmnt", r"train\.tsv:4: .*'entailmnt'.*did you mean 'entailment'\?"),
        ("stsb", 2, "\t".join("0123456ab") + "\t5.001", r"train\.tsv:2: '5\.001' .*a number from 0 to 5"),
        ("stsb", 2, "\t".join("0123456ab") + "\tnan", r"train\.tsv:2: 'nan' .*a number from 0 to 5"),
    ],
)
def test_glue_error_names_the_line(tmp_path, name, number, line, error):
    official = write_official(tmp_path / "official", name)
    edit(official / "train.tsv", number, line)
    with pytest.raises(UserError, match=error):
        read(name, official)


def test_glue_missing_files_are_named(tmp_path):
    official = write_official(tmp_path / "official", "mnli")
    (official / "dev_mismatched.tsv").unlink()
    with pytest.raises(UserError, match=r"dev_mismatched\.tsv: missing; expected the official layout, .* folder MNLI$"):
        read("mnli", official)
    for part in ("train", "dev"):
        (official / f"{part}.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(UserError, match=r"official: gives no example for train"):
        read("sst2", official)
    (official / "train.tsv").write_text("sentence\tlabel\n" + "a\t1\n" * 9)
    (official / "dev.tsv").write_text("sentence\tlabel\na\t1\n")
    with pytest.raises(UserError, match=r"official: no example of the class 'negative' to train on"):
        read("sst2", official)


def test_glue_clone_without_task_or_labels_is_named(tmp_path):
    official = write_official(tmp_path / "official", "rte")
    manifest = write_hub(tmp_path / "hub", "rte", official)
    with pytest.raises(UserError, match=r"hub\.json: .*'wnli' not found"):
        read("wnli", manifest)
    import datasets

    features = {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string")}
    features |= {"label": datasets.ClassLabel(names=["entailment", "not_entailment"])}
    data = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, -1]}
    unlabelled = datasets.Dataset.from_dict(data, features=datasets.Features(features))
    unlabelled.to_parquet(tmp_path / "hub/rte/train-00000-of-00001.parquet")
    with pytest.raises(
        UserError, match=r"hub\.json: .* rte train:2: the label None .*one of entailment, not_entailment"
    ):
        read("rte", manifest)


@pytest.mark.slow
def test_glue_real_files_match_published_counts(project, tmp_path):
    folder = project.parent / "shared/data/glue"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: four tasks of GLUE in the official layout")
    leaks = {"cola": 16, "sst2": 0, "mrpc": 0, "rte": 0}
    for name in leaks:
        official = folder / TASKS[name].published.folder
        source = read(name, official)
        assert source.warnings == []
        with Path(official / "dev.tsv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        texts = [{field.strip() for field in line} for line in lines[name != "cola" :]]
        assert [{e.a, e.b} - {None} - line for e, line in zip(source.splits["test"], texts, strict=True)] == [
            set()
        ] * len(texts)
        train_pairs = {(e.a, e.b) for split in ("train", "valid") for e in source.splits[split]}
        assert sum((e.a, e.b) in train_pairs for e in source.splits["test"]) == leaks[name]
        hub = read(name, write_hub(tmp_path / name, name, official))
        assert written(hub, tmp_path / f"{name}-a") == written(source, tmp_path / f"{name}-b")
