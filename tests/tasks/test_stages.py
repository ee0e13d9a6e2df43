"""The graph as `dvc.yaml` draws it: what its stages write, when they run again, and that nothing else decides."""

import csv
import hashlib
import json
import math
import shutil
import signal
from collections import Counter
from pathlib import Path

import datasets
import pandas
import pytest
import yaml
from projects import ROOT, finish

from plm_core.corpus.document import read_documents
from plm_core.corpus.removals import read_removals
from plm_core.shared.files import verify_checksums


def rows(project, path):
    with (project.root / path).open(newline="") as file:
        return list(csv.DictReader(file))


def declared(project):
    """Every output that `dvc.lock` records, which is what `dvc.yaml` declares for these parameters."""
    stages = yaml.safe_load((project.root / "dvc.lock").read_text())["stages"]
    return {out["path"] for stage in stages.values() for out in stage.get("outs", [])}


def test_the_chain_writes_what_the_graph_declares_and_nothing_else(built):
    outs = declared(built)
    assert len(outs) == 66
    for name, data in built.files().items():
        assert any(name == out or name.startswith(f"{out}/") for out in outs), name
        assert data or "/quarantined/" in name, name  # JSON lines, of which there are none
    assert not list((built.root / "artifacts/snapshots").glob("*"))
    for folder in (
        "artifacts/tokenizers/own",
        "artifacts/tokens/own/train",
        "artifacts/models/gpt",
        "artifacts/finetuned/gpt-sotu-era-2",
    ):
        verify_checksums(built.root / folder)


@pytest.mark.slow
def test_one_changed_parameter_reruns_its_stage_and_those_after_it_only(small):
    small.change(evaluate__stride=7)
    out, _ = small.run("dvc", "repro")
    ran = [line.split("'")[1] for line in out.splitlines() if line.startswith("Running stage")]
    assert ran == ["text-baseline@own", "evaluate@gpt", "minimal-pairs@gpt-own-pairs", "report"]
    assert "up to date" in small.run("dvc", "status")[0]


def test_every_record_document_and_paragraph_is_kept_or_removed(built, documents):
    """Of every stage that moves text: what it read is what it passed on and what it put aside."""
    corpus = built.root / "artifacts/corpus"
    ingested, cleaned, left = (built.metrics(name) for name in ("ingest-own", "clean", "deduplicate"))
    size = sum(len(d.text.encode()) for d in documents)
    assert ingested == {"records_read": 37, "documents": 37, "bytes": size, "quarantined": 0}
    removed = {name: list(read_removals(corpus / f"removed/{name}.parquet")) for name in ("clean", "deduplicate")}
    for metrics, name in ((cleaned, "clean"), (left, "deduplicate")):
        counted = {rule: n for rule, n in metrics.items() if rule.startswith("removed_") and n}
        by_rule = Counter(
            f"removed_{'documents' if r.paragraph is None else 'paragraphs'}_{r.rule}" for r in removed[name]
        )
        assert {rule: n for rule, n in counted.items() if rule.count("_") > 1} == by_rule
    splits = {n: list(read_documents(corpus / f"splits/{n}.parquet")) for n in ("train", "valid", "test")}
    kept = [d for split in splits.values() for d in split]
    gone = [r.document for rows in removed.values() for r in rows if r.paragraph is None]
    assert sorted(d.id for d in kept) + sorted(gone) == [f"own/{d.id}" for d in documents]
    paragraphs = sum(len(d.text.split("\n\n")) for d in kept)
    assert paragraphs + sum(len(rows) for rows in removed.values()) == cleaned["read_paragraphs"]
    for name, split in splits.items():
        size = sum(len(d.text.encode()) for d in split)
        assert (
            (left[f"{name}_documents"], left[f"{name}_bytes"])
            == (len(split), size)
            == (
                len(split),
                left[f"own/{name}_bytes"],
            )
        )


def test_corpus_does_not_depend_on_input_order(built, small):
    """The same records, from last to first and in one file."""
    files = sorted((small.root / "data").rglob("*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    for file in files:
        file.unlink()
    (small.root / "data/turned.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    for command in (["ingest", "own"], ["clean"], ["deduplicate"]):
        small.run(f"tasks.stages.{command[0]}", *command[1:])
    assert small.files("artifacts/corpus") == built.files("artifacts/corpus")


def test_corpus_is_readable_by_pandas_and_datasets(built):
    path = str(built.root / "artifacts/corpus/splits/train.parquet")
    ids = [d.id for d in read_documents(Path(path))]
    assert pandas.read_parquet(path)["id"].tolist() == ids
    loaded = datasets.Dataset.from_parquet(f"{path}/*.parquet", cache_dir=str(built.root / ".hf"))
    assert loaded["id"][:] == ids
    assert loaded.column_names == ["id", "text", "source", "metadata"]


def test_the_metrics_of_evaluate_are_the_sums_of_its_evidence(built):
    evidence, metrics = rows(built, "artifacts/evidence/gpt/likelihood.csv"), built.metrics("evaluate-gpt")
    texts = {d.id: d.text for d in read_documents(built.root / "artifacts/corpus/splits/test.parquet")}
    assert {row["id"]: row["sha256"] for row in evidence} == {
        i: hashlib.sha256(text.encode()).hexdigest() for i, text in texts.items()
    }
    assert {row["id"]: int(row["bytes"]) for row in evidence} == {i: len(text.encode()) for i, text in texts.items()}
    nats, size = math.fsum(float(row["nats"]) for row in evidence), sum(int(row["bytes"]) for row in evidence)
    assert metrics["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-12)
    assert metrics["tokens"] == sum(int(row["tokens"]) for row in evidence)
    assert {row["quantity"] for row in evidence} == {"bits_per_byte"}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("task", ["sotu-era", "next"])
def test_the_metrics_of_finetune_are_those_of_its_evidence(built, task, seed):
    evidence = rows(built, f"artifacts/evidence/gpt/{task}.{seed}.csv")
    metrics = built.metrics(f"finetune-gpt-{task}-{seed}")
    assert metrics["examples"] == len(evidence) == 37
    accuracy = sum(r["label"] == r["prediction"] for r in evidence) / 37
    assert metrics["score"] == metrics["accuracy"] == pytest.approx(accuracy)
    config = json.loads((built.root / f"artifacts/finetuned/gpt-{task}-{seed}/config.json").read_text())
    assert config["head"]["task"]["name"] == task
    assert {(r["subset"], r["score"]) for r in evidence} == {("", "accuracy")}
    assert all(1 / len(config["head"]["task"]["labels"]) <= float(r["confidence"]) <= 1 for r in evidence)
    assert {r["label"] for r in evidence} | {r["prediction"] for r in evidence} <= set(config["head"]["task"]["labels"])


def test_the_curve_and_the_metrics_of_pretrain_agree(built):
    curve, metrics = rows(built, "artifacts/curves/gpt.csv"), built.metrics("pretrain-gpt")
    assert [int(row["step"]) for row in curve] == list(range(2, 27, 2))
    valid = {int(row["step"]): float(row["valid_loss"]) for row in curve if row["valid_loss"]}
    assert list(valid) == [6, 12, 18, 24, 26]
    assert metrics["best_step"] == min(valid, key=valid.get)
    kept = {int(row["step"]): row["best"] for row in curve}
    assert kept == {step: str(int(step == metrics["best_step"])) if step in valid else "" for step in kept}
    assert metrics["valid_loss"] == min(valid.values())
    assert metrics["predictions"] == metrics["positions"] == 26 * 8 * 29
    config = json.loads((built.root / "artifacts/models/gpt/config.json").read_text())
    assert (config["step"], config["valid_nats"]) == (metrics["best_step"], metrics["valid_loss"])


def test_report_is_one_file_without_external_links(built):
    text = (built.root / "artifacts/report/results.md").read_text()
    assert f"{built.metrics('evaluate-gpt')['bits_per_byte']:.4f}" in text
    assert f"{built.metrics('finetune-gpt-sotu-era-2')['accuracy']:.3f}" in text
    page = (built.root / "artifacts/report/report.html").read_text()
    assert page.count("<svg") == 11
    assert "<script" not in page
    assert "<img" not in page


def test_every_stage_gives_the_same_bytes_when_it_runs_again(built, small):
    """By hand, one after the other, over the files of `dvc repro`; training runs and evaluations have their own
    tests."""
    alone = ([name] for name in ("clean", "deduplicate", "card"))
    pairs = ["minimal_pairs", "gpt", "own-pairs"]
    for command in (
        ["ingest", "own"],
        *alone,
        ["tokenizer", "own"],
        ["pack", "own"],
        ["pairs", "own-pairs"],
        pairs,
        ["text_baseline", "own"],
        ["report"],
    ):
        small.run(f"tasks.stages.{command[0]}", *command[1:])
    assert small.files() == built.files()


def test_evaluating_another_checkpoint_keeps_own_results(built, small):
    """The section of the parameters that made it need not have a model today."""
    (small.root / "artifacts/models/gpt").rename(small.root / "champion")
    evidence = ("--checkpoint", "champion", "--evidence", "elsewhere")
    small.run("tasks.stages.evaluate", "gpt", *evidence)
    small.run("tasks.stages.finetune", "gpt", "sotu-era", *evidence)
    names = ["cost.csv", "likelihood.csv", "sotu-era.1.csv", "sotu-era.2.csv"]
    assert sorted(small.files("elsewhere")) == [f"elsewhere/{name}" for name in names]
    for name in names:
        own = built.root / "artifacts/evidence/gpt" / name
        assert (small.root / "elsewhere" / name).read_bytes() == own.read_bytes()
    (small.root / "champion").rename(small.root / "artifacts/models/gpt")
    assert small.files() == built.files()


def test_evidence_distinguishes_measurement_rules(built, small):
    """Another stride, or other text that was trained on: the examples are the same, the numbers not comparable."""

    def measured(name):
        with (small.root / f"elsewhere/{name}.csv").open(newline="") as file:
            (rule,) = {row["measured"] for row in csv.DictReader(file)}
        return rule

    rules_by_name = {"likelihood": set(), "sotu-era.1": set()}
    evidence = ("--checkpoint", "artifacts/models/gpt", "--evidence", "elsewhere")
    for change in (
        {"finetune__seeds": [1]},
        {"evaluate__stride": 7, "finetune__dropout": 0.2},
        {"models": {"gpt": "own", "bert": "own"}},
    ):
        small.change(**change)
        small.run("tasks.stages.evaluate", "gpt", *evidence)
        small.run("tasks.stages.finetune", "gpt", "sotu-era", *evidence)
        for name, rules in rules_by_name.items():
            rules.add(measured(name))
    assert {name: len(rules) for name, rules in rules_by_name.items()} == {"likelihood": 2, "sotu-era.1": 2}


def test_generate_streams_the_continuation_that_evaluation_sampled(small):
    sampling = json.dumps({"max_new_tokens": 7, "seed": 5})
    out, _ = small.run("tasks.commands.generate", "Ba", "--checkpoint", "artifacts/models/gpt", "--sampling", sampling)
    sample = json.loads((small.root / "artifacts/samples/gpt.json").read_text())[0]
    assert out == sample["prompt"] + sample["continuation"] + "\n"


LONG = {"pretrain__gpt__training__steps": 5000}
"""Many steps more than a test waits for."""


@pytest.mark.slow
def test_an_edit_while_dvc_runs_the_stage_never_ends_as_up_to_date(small):
    """DVC hashes the sources when the command has ended: the new file would be recorded as what made the old output."""
    small.change(**LONG)
    process = small.start("dvc", "repro", "pretrain@gpt")
    small.snapshot(process)
    path = small.root / "plm_core/training/optimizer.py"
    path.write_text(path.read_text() + "\n# edited\n")
    out, err = finish(process, code=255)
    assert "plm_core/training/optimizer.py: changed while the stage ran" in out + err
    status = json.loads(small.run("dvc", "status", "--json", "pretrain@gpt")[0])
    assert "pretrain@gpt" in status


def test_ctrl_c_saves_a_snapshot_and_keeps_old_results(built, small):
    small.change(**LONG)
    process = small.start("tasks.stages.pretrain", "gpt")
    small.snapshot(process)
    process.send_signal(signal.SIGINT)
    _, err = finish(process, code=75)
    assert err.startswith("interrupted: state saved at step ")
    step = int(err.split("step ")[1].split()[0])
    *_, saved = sorted((small.root / "artifacts/snapshots").glob("*/step-*/progress.json"))
    assert json.loads(saved.read_text())["step"] == step
    assert small.files() == built.files()


def test_dvc_plots_every_training_run_with_its_loss_as_a_line_and_its_validations_as_points(small):
    shutil.copytree(ROOT / ".dvc/plots", small.root / ".dvc/plots")
    small.run("dvc", "plots", "show", "--quiet", "--out", "plots")
    parts = (small.root / "plots/index.html").read_text().split("var spec = ")[1:]
    plots = {plot["title"]["text"]: plot for plot, _ in map(json.JSONDecoder().raw_decode, parts)}
    assert list(plots) == ["Pretraining gpt"] + [
        f"Fine-tuning gpt on {task}, seed {seed}" for task in ("sotu-era", "next") for seed in (1, 2)
    ]
    plot = plots["Pretraining gpt"]
    line, points = (layer["encoding"]["y"] for layer in plot["layer"])
    assert (line["field"], line["title"], points["field"]) == ("loss", "nats a token", "valid_loss")
    drawn = [{name: row[name] for name in ("step", "loss", "valid_loss")} for row in plot["data"]["values"]]
    curve = rows(small, "artifacts/curves/gpt.csv")
    assert drawn == [{name: row[name] for name in ("step", "loss", "valid_loss")} for row in curve]
