"""The architecture as it is written down, tested: who imports what, and who depends on what."""

import ast
import copy
import functools
import importlib.util
import itertools
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml
from imported import closure, file_of, imports, says_something, tree
from torch import nn

from plm_core.benchmarks.task import KINDS
from plm_core.configs.architectures import MODELS
from plm_core.finetuning.input_formats import InputFormat
from plm_core.finetuning.task_heads import TaskHead
from plm_core.objectives import OBJECTIVES
from plm_core.shared import paths

ROOT = Path(__file__).parents[2]
PACKAGES = ("plm_core", "tasks", "flows")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
GRAPH = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def body(stage):
    """A stage's definition, below ``do`` when it stands for several."""
    return GRAPH[stage].get("do", GRAPH[stage])


def module(stage):
    """The task that a stage runs."""
    return re.match(r"python -m tasks\.stages\.(\w+)", body(stage)["cmd"])[1]


def listed(stage, *kinds):
    """The paths under these keys of a stage, with what is filled in replaced by ``*``."""
    for kind in kinds:
        for entry in body(stage).get(kind, []):
            path = entry if isinstance(entry, str) else next(iter(entry))
            yield re.sub(r"\$\{[^}]*\}", "*", path)


def covers(declared, path):
    """Whether ``declared`` is the path or a folder above it."""
    return path == declared or path.startswith(f"{declared}/")


@functools.cache
def loaded(stage):
    """The modules in a fresh process that has imported a stage: all of them, and the first-party files."""
    program = (
        f"import tasks.stages.{stage}, sys\n"
        "print(*(f'{name}={getattr(m, \"__file__\", None)}' for name, m in sys.modules.items()), sep='\\n')"
    )
    out = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = dict(line.split("=", 1) for line in out.splitlines())
    files = {Path(file) for name, file in modules.items() if name.split(".")[0] in PACKAGES}
    return set(modules), files


@pytest.mark.parametrize("stage", GRAPH)
def test_a_stage_depends_on_the_source_files_that_it_needs_or_on_folders_above_them(stage):
    deps = [dep for dep in listed(stage, "deps") if dep.startswith(PACKAGES)]
    needed = {relative(path) for path in closure(ROOT / f"tasks/stages/{module(stage)}.py") if says_something(path)}
    assert [path for path in sorted(needed) if not any(covers(dep, path) for dep in deps)] == [], "add them to dvc.yaml"
    assert [dep for dep in deps if not any(covers(dep, path) for path in needed)] == [], "not needed"


@pytest.mark.parametrize("stage", ["ingest", "clean", "tokenizer", "pack", "examples", "slices"])
def test_text_stages_import_no_torch(stage):
    modules, files = loaded(stage)
    assert not {"torch", "mlflow", "prefect", "dvc"} & modules
    assert {path for path in files if says_something(path)} <= closure(ROOT / f"tasks/stages/{stage}.py")


@pytest.mark.parametrize("stage", GRAPH)
def test_stage_inputs_are_written_by_another_stage(stage):
    outs = [out for other in GRAPH if other != stage for out in listed(other, "outs", "metrics", "plots")]
    for dep in listed(stage, "deps"):
        if dep.startswith("artifacts/"):
            assert any(covers(out, dep) or covers(dep, out) for out in outs), dep


OF_NO_STAGE = ("SNAPSHOTS", "PARTS", "JOURNALS", "METERS", "RUN_LINKS", "COMPILED", "COMPARE", "IMPORTED", "SWEEPS")


def test_the_graph_and_the_paths_in_the_code_are_the_same():
    constants = {name: p.as_posix() for name, p in vars(paths).items() if isinstance(p, Path) and name != "ARTIFACTS"}
    private = [constants.pop(name) for name in OF_NO_STAGE]
    outs = [out for stage in GRAPH for out in listed(stage, "outs", "metrics", "plots")]
    assert [out for out in outs if not any(covers(path, out) for path in constants.values())] == []
    assert [name for name, path in constants.items() if not any(covers(path, out) for out in outs)] == []
    assert not any(covers(out, path) or covers(path, out) for out in outs for path in private)


def test_every_template_is_named_by_its_code():
    templates = {path for package in PACKAGES for path in (ROOT / package).rglob("*.j2")}
    named = set().union(*(closure(path) for path in SOURCES if "plm_core.templates" in imports(path)))
    assert templates
    assert templates == {path for path in named if path.suffix == ".j2"}


def test_dvc_lists_the_models_of_the_parameters():
    """DVC fills in no lists there, so they are written out."""
    models = yaml.safe_load((ROOT / "params.yaml").read_text())["models"]
    artifacts = yaml.safe_load((ROOT / "dvc.yaml").read_text())["artifacts"]
    (checkpoint,) = listed("pretrain", "outs")
    assert {name: (model["type"], model["path"]) for name, model in artifacts.items()} == {
        name: ("model", checkpoint.replace("*", name)) for name in models
    }


def test_no_two_stages_write_the_same_path():
    """What one task writes for several stages is told apart by its parameters, which it checks."""
    outs = [(module(stage), out) for stage in GRAPH for out in listed(stage, "outs", "metrics", "plots")]
    pairs = itertools.permutations(outs, 2)
    assert [(a, b) for (first, a), (second, b) in pairs if covers(a, b) and (first != second or a != b)] == []


def test_the_rules_of_imports_are_kept():
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("library", "places"),
    [
        ("sentencepiece", ("plm_core/text/sentencepiece_tokenizers.py", "plm_core/text/published_tokenizer.py")),
        (
            "tokenizers",
            (
                "plm_core/text/hf_tokenizers.py",
                "plm_core/text/published_tokenizer.py",
                "plm_core/text/vocabulary_extension.py",
            ),
        ),
        ("evaluate", ("plm_core/evaluation/evaluate_modules.py",)),
        ("datasets", ("plm_core/corpus/sources/hub_source.py", "plm_core/evaluation/evaluate_modules.py")),
        ("altair", ("tasks/reporting/charts.py",)),
        ("rensa", ("plm_core/corpus/minhash.py",)),
        ("rouge_score", ("plm_core/evaluation/text_overlap.py",)),
        ("sacrebleu", ("plm_core/evaluation/text_overlap.py",)),
        ("jinja2", ("plm_core/templates.py",)),
        ("py3langid", ("plm_core/corpus/language.py",)),
        (
            "mlflow",
            (
                "tasks/publishing/publisher.py",
                "tasks/publishing/mlflow_run.py",
                "tasks/publishing/mlflow_model.py",
                "tasks/commands/package.py",
                "tasks/commands/serve.py",
                "flows",
            ),
        ),
        ("ray", ("flows/processes/ray_launcher.py",)),
        ("optuna", ("flows/sweeps/study.py", "tasks/commands/sweep_page.py")),
        ("pynvml", ("plm_core/training/callbacks/speed_monitor.py", "plm_core/shared/gpu_claims.py")),
        (
            "yaml",
            (
                "plm_core/shared/params_file.py",
                "tasks/parameters/editing.py",
                "tasks/runtime/provenance_guard.py",
                "flows",
            ),
        ),
        ("safetensors", ("plm_core/checkpoint.py", "plm_core/interchange")),
        (
            "dvc",  # docs/explanation/design.md says for what, and what a move away from it would take
            (
                "flows/run/graph.py",
                "flows/run/dvc_repair.py",
                "flows/maintenance/output_checks.py",
                "flows/maintenance/backup.py",
            ),
        ),
        ("dvc_data", ("flows/maintenance/backup.py",)),
    ],
)
def test_an_outside_library_enters_through_its_named_places(library, places):
    users = [relative(path) for path in SOURCES if library in imports(path)]
    assert users, f"{library} is used nowhere"
    assert [user for user in users if not any(covers(place, user) for place in places)] == []


def test_names_resolved_at_run_time_exist():
    for objective in OBJECTIVES.values():
        named = [objective.input_format, objective.decoder, objective.filler, objective.ranker]
        named += [quantity.scorer for quantity in (objective.likelihood, *objective.beside)]
        assert all(callable(resolve_name(place)) or place == objective.input_format for place in named if place)
        assert isinstance(resolve_name(objective.input_format), InputFormat)
    assert all(issubclass(architecture.model, nn.Module) for architecture in MODELS.values())
    for kind in KINDS.values():
        assert isinstance(resolve_name(kind.head), TaskHead)
        assert callable(resolve_name(kind.linear))


def test_code_branches_on_no_objective_or_architecture_name():
    """What is done otherwise for one of them is said in its own file, or in its row of a table."""
    names = {*OBJECTIVES, *MODELS, *KINDS}
    tables = {
        "plm_core/benchmarks/task_table.py",
        "plm_core/benchmarks/task.py",
        "plm_core/objectives/__init__.py",
        "plm_core/configs/architectures.py",
        "plm_core/training/size_presets.py",
    }
    mentions = [
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        if relative(path) not in tables and path.parent != ROOT / "plm_core/interchange"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert mentions == []


def named_files(path):
    """The files that a file imports by name, in functions too; not the packages that they are in."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if file_of(name) else node.module for name in inside]
        else:
            continue
        yield from filter(None, (file_of(name) for name in names))


def test_no_circular_imports():
    TopologicalSorter({path: {*named_files(path)} & {*SOURCES} for path in SOURCES}).prepare()


def test_shared_imports_only_standard_library_yaml_and_pynvml():
    for path in (ROOT / "plm_core/shared").glob("*.py"):
        others = {name.split(".")[0] for name in imports(path) if not name.startswith("plm_core")}
        assert others <= sys.stdlib_module_names | {"pynvml", "yaml"}, path


def test_no_task_imports_another_task():
    rooms = ("tasks.stages.", "tasks.commands.")
    first = {
        relative(path): [name for name in imports(path) if name.startswith(rooms) and file_of(name)] for path in SOURCES
    }
    assert {path: names for path, names in first.items() if names} == {}


def test_files_have_docstrings_and_core_has_no_broad_except():
    violations = []
    for path in SOURCES:
        if not ast.get_docstring(tree(path)):
            violations.append(f"{relative(path)}: no module docstring")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and path.is_relative_to(ROOT / "plm_core"):
                anything = getattr(node.type, "id", "") in ("Exception", "BaseException")
                # But for one that lets go on what it does not know.
                goes_on = any(isinstance(child, ast.Raise) and child.exc is None for child in ast.walk(node))
                if node.type is None or (anything and not goes_on):
                    violations.append(f"{relative(path)}:{node.lineno}: catches anything")
    assert violations == []


def form(value):
    """The kind of expression, whatever names and numbers stand in it."""
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg"}
    value = copy.deepcopy(value)
    for node in ast.walk(value):
        if isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
        elif type(node) in kinds:
            setattr(node, kinds[type(node)], "_")
    return ast.dump(value)


def test_tuple_assignments_are_of_like_values():
    """`rows, columns = len(a), len(b)` reads as one thought and `error, seconds = "", 0.0` as two; B, T are shapes."""
    violations = []
    for path, node in ((file, node) for file in SOURCES for node in ast.walk(tree(file))):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and isinstance(node.targets[0], ast.Tuple)
        ):
            names = [ast.unparse(target) for target in node.targets[0].elts]
            shapes = all(len(name) == 1 and name.isupper() for name in names)
            if len(names) == len(node.value.elts) and not shapes and len({*map(form, node.value.elts)}) > 1:
                violations.append(f"{relative(path)}:{node.lineno}: {', '.join(names)}")
    assert violations == []


def test_layer_diagram_matches_the_import_contract():
    diagram = re.search(r"imports go down only:\n\n```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    rooms = [re.split(r"\s{2,}", line)[0].split(", ") for line in diagram.splitlines()]
    contract = re.search(
        r'containers = \["plm_core"\]\nlayers = \[(.*?)\n\]', (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    layers = [sorted(names.split(" | ")) for names in re.findall(r'"([^"]+)"', contract[1])]
    flat = [name for names in layers for name in names]
    assert sorted(flat) == sorted(name for names in rooms for name in names)
    assert [name for names in rooms for name in sorted(names) if name not in ("config", "shared")] == [
        name for name in flat if name not in ("config", "shared")
    ]


def test_training_stages_do_not_depend_on_templates():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name in ("pretrain", "finetune", "transfer"):
        assert [file for file in stages[name].get("do", stages[name])["deps"] if file.endswith(".j2")] == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests/bench").glob("*.py")), ids=relative)
def test_what_a_benchmark_imports_is_there(path):
    """No test runs them, so a name that moved would be found on the day of a measurement."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("flows", "tasks", "plm_core"):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}"), name


def test_no_file_mentions_a_path_of_a_machine():
    texts = [*SOURCES, *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.*"), ROOT / "Makefile"]
    places = re.compile(r"(?<![\w.$}~-])/" + r"(work|root|home|Users|mnt)/\w")
    files = [relative(p) for p in texts if p.is_file() and places.search(p.read_text(errors="replace"))]
    assert files == []


VAGUE = {"found", "said", "told", "asked", "known", "one", "each", "true", "here"}


def named(node):
    """The name that a node gives to a value, a parameter, a field or a function; None if it gives none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return getattr(node, "arg", None) or getattr(node, "name", None)


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "infra", "docs"])
def test_names_are_not_vague(folder):
    """These words fit every value, so they name none."""
    vague = [
        f"{relative(path)}:{node.lineno}: {named(node)}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree(path))
        if named(node) in VAGUE
    ]
    assert vague == []


def test_no_two_modules_have_one_name():
    """Then the name of a module, or of a room, is enough to find it."""
    names = Counter(path.parent.name if path.stem == "__init__" else path.stem for path in SOURCES)
    assert [name for name, count in names.items() if count > 1] == []
