"""The check of the parameters: silent on good ones, all problems of bad ones at once, and nothing heavy is imported."""

import subprocess
import sys

import pytest
import yaml
from projects import ROOT, Project, source

from flows.run.checkout import check_parameters
from plm_core.shared.errors import UserError

WRONG = {
    "models": ({"gpt": "own", "bertt": "own"}, "pretrain.bertt: no such section in params.yaml; it has gpt, bert"),
    "sources__own__input": ("nowhere", "nowhere: missing; put it there, or name another file or folder"),
    "clean__paragraphs": ({"wrods": {"min": 3}}, "clean.paragraphs.wrods: unknown measure; did you mean 'words'"),
    "deduplicate__documents": ("keep", "deduplicate.documents: found the text 'keep'; expected one of"),
    "split__test": (0.9, "split.valid: 0.2 and test: 0.9"),
    "decontaminate__examples": ([{"name": "a", "file": "dev.tsv", "sha256": "0"}], "dev.tsv: missing"),
    "mixture__shares": ({"other": 1.0}, "mixture.shares: found other; expected the sources with training text: own"),
    "tokenizers": ({"own": {"given": {"file": "my.model", "sha256": "0"}}}, "my.model: missing"),
    "pretrain__gpt__training__optimizer__warmup_steps": (60, "warmup_steps: 60; expected fewer than the 26 steps"),
    "evaluate__stride": (0, "evaluate.stride: found 0; expected above 0"),
    "examples__tickets": ({"input": "artifacts/x", "kind": "classification"}, "not a task of the table"),
    "finetune__tasks": (["sotu-era", "nxt"], "finetune.tasks: found 'nxt'; expected sections of examples"),
    "fewshot__models": (["bert"], "fewshot.models: found 'bert'; expected some of models: gpt, bertt"),
    "promotion__alpha": (7, "promotion.alpha: found 7"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(source(tmp_path_factory.mktemp("check") / "project"))
    (project.root / "data").mkdir()
    return project


@pytest.fixture
def changed(project, tmp_path):
    return project.copied(tmp_path / "project")


def lines(project):
    _, err = project.run("tasks.commands.check", code=2)
    assert all(line.startswith("error: ") for line in err.splitlines())
    return err.splitlines()


def test_good_parameters_are_checked_in_silence(project):
    assert project.run("tasks.commands.check") == ("", "")
    check_parameters(project.root)
    own = subprocess.run([sys.executable, "-m", "tasks.commands.check"], cwd=ROOT, capture_output=True, text=True)
    assert (own.returncode, own.stderr) == (0, "")


def test_check_reports_problems_of_all_sections_at_once(changed):
    changed.change(**{name: value for name, (value, _) in WRONG.items()})
    errors = lines(changed)
    for _, message in WRONG.values():
        assert any(message in line for line in errors), message
    assert len(errors) == len(set(errors)) == len(WRONG)
    with pytest.raises(UserError) as refused:
        check_parameters(changed.root)
    assert f"error: {refused.value}".splitlines() == errors


def test_check_reports_colliding_stage_names(changed):
    params = yaml.safe_load((changed.root / "params.yaml").read_text())
    task = {"input": "data", "kind": "classification", "a": "text", "label": "l", "labels": ["x", "y"]}
    changed.change(**{"models": {"gpt": "own", "gpt-b": "own"}, "pretrain__gpt-b": params["pretrain"]["gpt"]})
    changed.change(**{"examples__b-next": task | {"score": "accuracy"}, "finetune__tasks": ["next", "b-next"]})
    changed.change(**{"pairs__b-own-pairs": params["pairs"]["own-pairs"]})
    assert lines(changed) == [
        "error: models, pairs: gpt with b-own-pairs and gpt-b with own-pairs would both be gpt-b-own-pairs; "
        "expected other names",
        "error: models, finetune.tasks: gpt with b-next and gpt-b with next would both be gpt-b-next; "
        "expected other names",
    ]
    changed.change(**{"finetune__tasks": ["next"], "pairs__b-own-pairs": ...})
    changed.run("tasks.commands.check")


OBJECTIVE = "pretrain__gpt__objective"
MODELS = [
    ({"pretrain__gpt__model__heads": 3}, ["pretrain.gpt.model.heads: 3 does not divide width 16"]),
    (
        {OBJECTIVE: {"name": "masked"}},
        ["pretrain.gpt.objective.name: masked cannot train architecture gpt", "fewshot.models: gpt is a masked model"],
    ),
    (
        {OBJECTIVE: {"name": "causal", "streams": True}},
        ["pretrain.gpt.objective.streams: True for a model with memory"],
    ),
    ({OBJECTIVE: {"name": "casual"}}, ["pretrain.gpt.objective.name: found "]),
    ({OBJECTIVE: {}}, ["pretrain.gpt.objective.name: found "]),
    (
        {"pretrain__gpt__training__steps": "many", "pretrain__gpt__training__btach": 7, "finetune__dropout": True},
        ["finetune.dropout: ", "pretrain.gpt.training.btach: ", "pretrain.gpt.training.steps: "],
    ),
]


@pytest.mark.parametrize(("changes", "messages"), MODELS)
def test_each_problem_of_a_model_is_a_line(changed, changes, messages):
    changed.change(**changes)
    errors = lines(changed)
    assert all(line.startswith(f"error: {message}") for line, message in zip(errors, messages, strict=True))


def test_the_manifest_of_a_hub_is_read(changed):
    changed.change(sources__web={"reader": "hub", "input": "web.json"})
    assert lines(changed) == ["error: web.json: missing; put it there, or name another file or folder in params.yaml"]
    (changed.root / "web.json").write_text(
        '{"dataset": "a/b", "revision": "main", "license": "", "homepage": "", "split": ""}'
    )
    assert lines(changed)[0].startswith("error: web.json.revision: found 'main'; expected a commit")


def test_check_allows_tasks_without_prompt_unless_named(changed):
    task = {"input": "data", "kind": "classification", "a": "text", "label": "l", "labels": ["x", "y"]}
    changed.change(examples__tickets=task | {"score": "accuracy"}, finetune__tasks=["next", "tickets"])
    changed.change(fewshot__tasks=None)
    changed.run("tasks.commands.check")
    changed.change(fewshot__tasks=["tickets"])
    assert lines(changed) == [
        "error: fewshot.prompts.tickets: missing; expected a template and options for a task of your own"
    ]


def test_check_imports_nothing_heavy():
    program = (
        "import tasks.commands.check, sys; print({'torch', 'mlflow', 'scipy', 'sklearn', 'datasets'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
