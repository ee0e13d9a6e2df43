"""Every application of the guide: from its lines of parameters to an address that answers as the evidence says."""

import csv
import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import yaml
from projects import ROOT

from plm_core.benchmarks.example_readers import file_of
from plm_core.benchmarks.task import KINDS, read_examples, read_task

GUIDE = (ROOT / "docs/how-to/applications.md").read_text()
RECIPES = dict(re.findall(r"^## (.*?)$.*?^```yaml\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE))
WORDS = ["bafo", "limu", "pesa", "toku", "dine", "gota"]


def write(folder, described):
    """Files of made-up examples, in the columns that a recipe names."""
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("test", 12)):
        draw = random.Random(split)
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(count)]
        kind = described["kind"]
        if kind == "token_classification":
            tags = {WORDS[0]: "B-PER", WORDS[1]: "B-ORG"}
            lines = [[*(f"{word} {tags.get(word, 'O')}" for word in text.split()), ""] for text in texts]
            (folder / f"{split}.conll").write_text("\n".join(line for sentence in lines for line in sentence))
        elif kind == "question_answering":
            answers = [{"text": text.split()[1], "answer_start": len(text.split()[0]) + 1} for text in texts]
            qas = [{"id": f"{split}{i}", "question": "which?", "answers": [a]} for i, a in enumerate(answers)]
            paragraphs = [{"context": text, "qas": [qa]} for text, qa in zip(texts, qas, strict=True)]
            (folder / f"{split}.json").write_text(json.dumps({"data": [{"title": split, "paragraphs": paragraphs}]}))
        else:
            columns = [described["a"], *([described["b"]] if "b" in described else []), *described.get("choices", [])]
            labels = described.get("labels") or [0, 1]
            answered = KINDS[kind].writes_texts
            rows = [
                [*(f"{text} {WORDS[i]}" for i in range(len(columns))), text[:5] if answered else labels[n % 2]]
                for n, text in enumerate(texts)
            ]
            with (folder / f"{split}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([[*columns, described["label"]], *rows])


def ask(url, body):
    """The answer of a server as soon as it has started."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["predictions"]
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError("no answer")


@pytest.mark.slow
def test_every_application_of_the_guide_goes_from_its_lines_to_a_served_model(small):
    described = {title: yaml.safe_load(recipe) for title, recipe in RECIPES.items()}
    assert len(described) == 9
    assert all(len(recipe.splitlines()) <= 10 for recipe in RECIPES.values())
    assert described.pop("Generation") == {"models": {"gpt": "own"}}  # served as test_serve has it
    sections = {name: section for recipe in described.values() for name, section in recipe["examples"].items()}
    assert [recipe["finetune"] for recipe in described.values()] == [{"tasks": [name]} for name in sections]
    for section in sections.values():
        write(small.root / section["input"], section)
    small.change(examples=sections, finetune__tasks=list(sections), finetune__seeds=[1])
    for name, section in sections.items():
        small.run("tasks.stages.examples", name)
        small.run("tasks.stages.baseline", name)
        small.run("tasks.stages.finetune", "gpt", name, "1")
        target = f"served-{name}"
        small.run(
            "tasks.commands.export", target, "--to", "mlflow", "--checkpoint", f"artifacts/finetuned/gpt-{name}-1"
        )
        assert "score" in small.metrics(f"baseline-{name}")
        folder = small.root / "artifacts/examples" / name
        task = read_task(folder)
        with (small.root / f"artifacts/evidence/gpt/{name}.1.csv").open(newline="") as file:
            predicted = {row["id"]: row["prediction"] for row in csv.DictReader(file)}
        examples = [example for example in read_examples(file_of(folder, "test"), task) if example.id in predicted]
        kind = KINDS[section["kind"]]
        columns = {column: field for column, field in kind.request.items() if getattr(examples[0], field)}
        rows = [{column: getattr(example, field) for column, field in columns.items()} for example in examples]
        request = pd.DataFrame(rows).map(lambda value: [*value] if isinstance(value, tuple) else value)
        answers = mlflow.pyfunc.load_model(str(small.root / target)).predict(request)["answer"]
        for example, answer in zip(examples, answers, strict=True):
            if section["kind"] == "regression":
                assert float(predicted[example.id]) == pytest.approx(answer, rel=1e-4)
            else:
                assert predicted[example.id] == (" ".join(answer) if isinstance(answer, list) else answer)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free_port = probe.getsockname()[1]
    arguments = ["models", "serve", "-m", target, "--env-manager", "local", "--port", str(free_port)]
    program = Path(sys.executable).with_name("mlflow")
    with subprocess.Popen([program, *arguments], cwd=small.root, stderr=subprocess.DEVNULL) as server:
        try:
            served = ask(f"http://127.0.0.1:{free_port}/invocations", {"dataframe_records": rows})
        finally:
            server.terminate()
    assert [row["answer"] for row in served] == answers.tolist()
