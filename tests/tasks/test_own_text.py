"""The README's recipe for text of one's own, verbatim: on documents of one paragraph and in a table."""

import csv
import itertools
import random
import re

import pytest
import yaml
from projects import ROOT, Project, source

from tasks.commands.check import problems
from tasks.commands.init import init
from tasks.stages.baseline import baseline
from tasks.stages.clean import clean
from tasks.stages.deduplicate import deduplicate_and_split
from tasks.stages.evaluate import evaluate
from tasks.stages.examples import examples
from tasks.stages.fewshot import fewshot
from tasks.stages.finetune import finetune
from tasks.stages.ingest import ingest
from tasks.stages.pack import pack
from tasks.stages.pretrain import pretrain
from tasks.stages.slices import slices
from tasks.stages.tokenizer import tokenizer

WORDS = ["".join(syllables) for syllables in itertools.product(("ba", "do", "ki", "lu", "me", "ra"), repeat=3)]


def prose(seed, words):
    """Made-up prose, the same for the same seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words)).capitalize() + "."


def recipe():
    """The block of the README."""
    text = (ROOT / "README.md").read_text()
    return yaml.safe_load(re.search(r"## Your own text.*?```yaml\n(.*?)```", text, re.DOTALL)[1])


def one_paragraph(folder, count):
    for number in range(count):
        (folder / f"{number}.txt").write_text(prose(f"one/{number}", 25 + number % 40))


def table(folder, count):
    with (folder / "all.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["number", "text"])
        rows.writerows([number, prose(f"table/{number}", 25 + number % 40)] for number in range(count))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of small sizes with the parameters of the demo otherwise, and the folder of the recipe."""
    project = Project(source(tmp_path / "project"))
    real = yaml.safe_load((ROOT / "params.yaml").read_text())
    project.change(fewshot=real["fewshot"] | {"examples": 7, "shots": [0]}, evaluate=real["evaluate"])
    project.change(evaluate__sampling__max_new_tokens=5, finetune__train_examples=37)
    (project.root / "my-texts").mkdir()
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("PLM_TRACKING", "off")
    monkeypatch.setenv("PLM_THREADS", "1")
    return project


def run(name):
    """Every stage up to what is compared; the graph's order."""
    ingest(name)
    clean()
    deduplicate_and_split()
    tokenizer("own")
    pack("own")
    for stage in (examples, baseline, slices):
        stage("next")
    pretrain("gpt")
    evaluate("gpt")
    finetune("gpt", "next", 1)
    fewshot("gpt")


@pytest.mark.parametrize("write", [one_paragraph, table])
def test_readme_recipe_succeeds(project, write):
    write(project.root / "my-texts", 60)
    params = yaml.safe_load((project.root / "params.yaml").read_text())
    whole = ("sources", "examples")
    changed = {name: value if name in whole else params[name] | value for name, value in recipe().items()}
    project.change(**changed)
    assert problems() == []
    run("mine")
    assert project.metrics("finetune-gpt-next-1")["examples"] > 0
    assert project.metrics("fewshot-gpt")["next/0/examples"] > 0


def test_proposal_of_init_succeeds(project, capsys):
    one_paragraph(project.root / "my-texts", 60)
    init(project.root / "my-texts", agreed=True, dry_run=False)
    assert "params.yaml: written" in capsys.readouterr().out
    assert problems() == []
    project.change(tokenizers__own__vocab_size=307)  # of made-up words there are few
    run("my-texts")
    assert project.metrics("finetune-gpt-next-1")["examples"] > 0


def test_texts_without_examples_fail_at_the_examples_stage(project):
    for number in range(60):
        (project.root / f"my-texts/{number}.txt").write_text(f"Only {number}.")
    project.change(**{name: recipe()[name] for name in ("sources", "examples")}, clean={})
    ingest("mine")
    clean()
    deduplicate_and_split()
    error = project.refused("tasks.stages.examples", "next")
    assert error.startswith("error: artifacts/corpus/splits: gives no example for train (examples.next)")
    assert "take next out of examples and finetune.tasks" in error
