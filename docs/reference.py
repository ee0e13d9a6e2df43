"""Writes the reference pages from the code: every parameter, command and stage. Run by ``make docs``.

``python docs/reference.py --check`` says which pages are not those that it would write, and changes none.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
import typer
import yaml
from pydantic.fields import FieldInfo

from flows.cli import app
from flows.flow_configs import Promotion, Retention, Tracking
from flows.sweeps.study import Sweep
from plm_core.benchmarks.pair_sets import PairsConfig
from plm_core.benchmarks.prompts import FewshotConfig
from plm_core.benchmarks.task import ExamplesConfig
from plm_core.configs.architectures import MODELS
from plm_core.configs.stage_configs import DeduplicateConfig, EvaluateConfig
from plm_core.corpus.cleaning import OWN, Bounds, CleanConfig
from plm_core.corpus.decontamination import DecontaminateConfig
from plm_core.corpus.measures import MEASURES
from plm_core.corpus.sources import SOURCES
from plm_core.corpus.splits_and_mixtures import MixtureConfig, SplitConfig
from plm_core.evaluation.gate_rules import GateRules
from plm_core.finetuning.finetune_config import FinetuneConfig
from plm_core.objectives import OBJECTIVES
from plm_core.shared.options import NotifyConfig
from plm_core.text.tokenizers import TokenizerConfig
from tasks.parameters.pretrain_config import PretrainConfig

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}

Part = tuple[str, str, str | None, dict[str, type]]
"""A section's dotted name, what is said of it, and the classes that may stand there by the value of a parameter."""
PARTS: list[Part] = [
    ("sources.<name>", "", "reader", dict(SOURCES)),
    *(
        (name, "", None, {"": cls})
        for name, cls in {
            "clean": CleanConfig,
            "deduplicate": DeduplicateConfig,
            "split": SplitConfig,
            "decontaminate": DecontaminateConfig,
            "mixture": MixtureConfig,
            "tokenizers.<name>": TokenizerConfig,
        }.items()
    ),
    (
        "pretrain.<name>",
        "`size` (a time, a depth or a published name) fills in the rest; the error for a wrong one lists all names.",
        None,
        {"": PretrainConfig},
    ),
    ("pretrain.<name>.objective", "", "name", dict(OBJECTIVES)),
    (
        "pretrain.<name>.model",
        "`preset` names a published size; parameters beside it take precedence. The tokenizer gives the vocabulary.",
        "architecture",
        {name: entry.config for name, entry in MODELS.items()},
    ),
    ("evaluate", "", None, {"": EvaluateConfig}),
    ("examples.<name>", "", None, {"": ExamplesConfig}),
    ("pairs.<name>", "", None, {"": PairsConfig}),
    ("finetune", "", None, {"": FinetuneConfig}),
    ("fewshot", "", None, {"": FewshotConfig}),
    ("tracking", "", None, {"": Tracking}),
    ("notify", "", None, {"": NotifyConfig}),
    ("promotion", "", None, {"flow": Promotion, "gate": GateRules}),
    ("sweep", "Read only by `plm sweep`.", None, {"": Sweep}),
    ("retention", "Without it nothing is deleted.", None, {"": Retention}),
]


def parameters() -> str:
    """The page of ``params.yaml``."""
    text = [
        "# Parameters",
        "Every decision of the pipeline is in `params.yaml`. `models` names the sections of `pretrain` that are "
        "trained, each with its tokenizer, a section of `tokenizers`. "
        "Every other section is described here, from the class that reads it. All sections are checked "
        "before the first stage runs; `plm run` lists every problem at once.",
    ]
    for name, introduction, key, classes in PARTS:
        text += [f"## `{name}`", *([introduction] if introduction else [])]
        for value, cls in classes.items():
            text += [f"### `{name}` with `{key}: {value}`"] if key else []
            text += _section(name, cls)
        if name == "clean":
            text += _measures()
    return _page(text)


def commands() -> str:
    """The page of the command ``plm``."""
    text = [
        "# Commands",
        "Each command prints this with `--help`. Exit status: 0 when all is well, 1 when work failed, "
        "2 when you must fix something, 130 after Ctrl-C. Also 1: the gate refused `plm promote`, `plm nights` "
        "found a run that failed or was missed, `plm gc` could not delete something. `plm run`, "
        "`plm sweep` and `plm doctor` say below what else they return.",
    ]
    for name, command in _leaves("plm", typer.main.get_command(app)):
        context = command.make_context("plm", [], resilient_parsing=True)
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        rows = [
            _parameter(parameter)
            for parameter in command.params
            if parameter.name != "help" and not getattr(parameter, "hidden", False)
        ]
        text += [f"## `{name}`", inspect.cleandoc(command.help or ""), f"```text\n{usage}\n```"]
        text += [_table(["", "meaning", "default"], rows)] if rows else []
    return _page(text)


def stages() -> str:
    """The page of the graph."""
    graph = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    text = [
        "# Stages",
        "`dvc.yaml` is the graph. `dvc repro` runs stages that are out of date one by one, `plm run` in parallel. A "
        "stage also depends on the source files that it imports.",
    ]
    for name, stage in graph.items():
        does = stage.get("do", stage)
        over = stage.get("foreach") or stage.get("matrix")
        key = "" if over is None else "@..."
        text += [f"## `{name}{key}`", re.sub(r"\$\{(.*?)\}", r"`<\1>`", does["desc"]) + "."]
        rows = [["runs", f"`{_plain(does['cmd'])}`"]]
        if over is not None:
            rows.append(["once for each", ", ".join(f"`{_plain(str(value))}`" for value in _each(over))])
        for title, key in (("parameters", "params"), ("reads", "deps"), ("writes", "outs"), ("metrics", "metrics")):
            items = [_plain(next(iter(item)) if isinstance(item, dict) else item) for item in does.get(key, [])]
            shown = [item for item in items if key != "deps" or not item.startswith(("tasks/", "plm_core/"))]
            rows += [[title, ", ".join(f"`{item}`" for item in shown)]] if shown else []
        text.append(_table(["", ""], rows))
    return _page(text)


def _section(name: str, cls: type) -> list[str]:
    """The table of a class, and after it those of the sections in it."""
    hints = typing.get_type_hints(cls, include_extras=True)
    docs = _docs(cls)
    rows, nested = [], []
    for field in dataclasses.fields(cls):
        if hints[field.name] is Any and field.name not in docs:
            continue  # another class describes it
        if field.name == "vocab_size" and name.endswith(".model"):
            continue
        rows.append(
            [
                f"`{field.name}`",
                _kind(hints[field.name]),
                _default(field),
                docs.get(field.name, "As in `pretrain.<name>.training`."),
            ]
        )
        nested += [(f"{name}.{field.name}", part) for part in _sections_in(hints[field.name]) if part is not Bounds]
    where = inspect.getsourcefile(cls)
    assert where is not None
    source = f"`{Path(where).relative_to(ROOT).as_posix()}`, `{cls.__name__}`"
    text = [f"{_first(cls)} ({source})", _table(["parameter", "type", "default", "meaning"], rows)]
    for inner, part in nested:
        text += [f"### `{inner}`", *_section(inner, part)]
    return text


def _measures() -> list[str]:
    rows = []
    for name, measure in MEASURES.items():
        own = (
            "".join(f" `{f.name}`: {_docs(OWN[name])[f.name]}" for f in dataclasses.fields(OWN[name])[2:])
            if (name in OWN)
            else ""
        )
        rows.append([f"`{name}`", _first(getattr(measure, "func", measure)) + own])
    note = "Each takes `min`, `max` or both; the bounds are inclusive."
    return ["### Measures", note, _table(["measure", "what it counts, and the published bound"], rows)]


def _docs(cls: type) -> dict[str, str]:
    """What stands below each field of a class and of those that it inherits from."""
    docs: dict[str, str] = {}
    for base in reversed([ancestor for ancestor in cls.__mro__ if dataclasses.is_dataclass(ancestor)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(field.target, ast.Name):
                docs[field.target.id] = _line(inspect.cleandoc(ast.literal_eval(below.value)))
    return docs


def _kind(hint: Any) -> str:
    """A type in words, with its range."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([_kind(args[0]), *_bounds(args[1:])])
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if arg is types.NoneType else _kind(arg) for arg in args)
    if origin in (list, tuple):
        return f"list, each {_kind(args[0])}"
    if origin is dict:
        return f"{_kind(args[1])} by name" if dataclasses.is_dataclass(args[1]) else f"by name: {_kind(args[1])}"
    return "section" if dataclasses.is_dataclass(hint) else WORDS[hint]


RANGES = (
    (annotated_types.Gt, "above"),
    (annotated_types.Ge, "from"),
    (annotated_types.Lt, "below"),
    (annotated_types.Le, "to"),
)


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for constraint in metadata:
        if isinstance(constraint, FieldInfo):
            yield from _bounds(constraint.metadata)
        for kind, word in RANGES:
            if isinstance(constraint, kind):
                yield f"{word} {getattr(constraint, kind.__name__.lower()):,}"


def _sections_in(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for arg in typing.get_args(hint):
        yield from _sections_in(arg)


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return "its defaults" if dataclasses.is_dataclass(made) else f"`{made}`"
    if field.default is dataclasses.MISSING:
        return "required"
    value = field.default
    return "null" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for subcommand, inner in getattr(command, "commands", {}).items():
        yield from _leaves(f"{name} {subcommand}", inner)
    if not hasattr(command, "commands"):
        yield name, command


def _parameter(given: Any) -> list[str]:
    option = given.param_type_name == "option"
    name = ", ".join([*given.opts, *given.secondary_opts]) if option else (given.metavar or given.name).upper()
    stated = getattr(given, "show_default", None)
    shown = stated if isinstance(stated, str) else given.default
    if given.secondary_opts and isinstance(shown, bool):
        shown = (given.opts if shown else given.secondary_opts)[0]
    shown = "" if shown is None or isinstance(shown, bool) else shown
    default = "required" if given.required else f"`{shown}`" if shown != "" else ""
    return [f"`{name}`", _line(given.help or ""), default]


def _each(over: Any) -> list[str]:
    return [f"{key}: {value}" for key, value in over.items()] if isinstance(over, dict) else [str(over)]


def _first(documented: Any) -> str:
    return _line(inspect.cleandoc(documented.__doc__ or "").split("\n\n")[0])


def _plain(text: str) -> str:
    return re.sub(r"\$\{(?:item\.)?([^}]*)\}", r"<\1>", text)


def _line(text: str) -> str:
    """A docstring in a cell of a table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *rows])


def _page(parts: list[str]) -> str:
    return "<!-- Written by docs/reference.py from the code. -->\n\n" + "\n\n".join(parts) + "\n"


def main(check: bool) -> int:
    """Write the pages, or name those that are out of date; the exit status."""
    old = []
    for write in (parameters, commands, stages):
        path = PAGES / f"{write.__name__}.md"
        text = write()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        old.append(path.relative_to(ROOT).as_posix())
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if old and check:
        print(f"{', '.join(old)}: not what the code says; run `make docs`", file=sys.stderr)
    return int(bool(old and check))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
