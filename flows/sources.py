"""Finds the source files that each stage depends on, by its imports, and writes them into dvc.yaml: ``make graph``.

``python -m flows.sources`` writes; with ``--check`` it only compares, and exits with status 1 if there is a difference.
It owns everything after the mark in a stage's ``deps``.

Some modules are not imported but named, by a string ``module:attribute`` that is assigned to a name (such as the parts
of an objective). A file depends on them if it calls ``resolve_name`` and reads an attribute of that name.

A template is named by its path in double quotes: in the file that fills it in, and in templates that include it.
"""

import argparse
import ast
import functools
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from plm_core.shared import paths

PACKAGES = ("plm_core", "tasks")
LISTED = re.compile(rf"^( *){paths.SOURCES}\n(.*?)^( *)\]", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *cmd: python -m tasks\.(\w+)", re.MULTILINE)
PLACE = re.compile(r"(\w+(?:\.\w+)+):\w+")
TEMPLATE = re.compile(r'"([\w./-]+\.j2)"')
WIDTH = 120
MOST = 0.75
"""If a stage needs at least this share of a folder's files, the folder is listed instead: a short list is worth a run
too many."""


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def says_something(path: Path) -> bool:
    """Whether a file contains more than its docstring; always true for a template."""
    return path.suffix != ".py" or any(not isinstance(node, ast.Expr) for node in tree(path).body)


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports, inside functions too, and the packages above them."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name.rsplit(".", cut)[0] for name in found for cut in range(name.count(".") + 1))


@functools.cache
def places(root: Path) -> dict[str, frozenset[str]]:
    """The modules that are named as ``module:attribute``, by the names that these strings are assigned to."""
    found: dict[str, set[str]] = {}
    for path in sorted((root / PACKAGES[0]).rglob("*.py")):
        for node in ast.walk(tree(path)):
            named: list[tuple[str, ast.expr]] = []
            if isinstance(node, ast.keyword) and node.arg:
                named = [(node.arg, node.value)]
            elif isinstance(node, ast.Assign):
                named = [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
            for name, value in named:
                if isinstance(value, ast.Constant) and (place := PLACE.fullmatch(str(value.value))):
                    found.setdefault(name, set()).add(place[1])
    return {name: frozenset(modules) for name, modules in found.items()}


def needed(root: Path, path: Path) -> frozenset[str]:
    """The modules that a file imports, and those that it resolves by their names."""
    found = imports(path)
    if "pkgutil" in found:
        read = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
        found |= {module for name, modules in places(root).items() if name in read for module in modules}
    return found


def file_of(root: Path, module: str) -> Path | None:
    """The file of a module of the project; None if there is none."""
    path = root.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def closure(root: Path, path: Path) -> set[Path]:
    """The files of the project that a file needs, including templates and itself."""
    found = set[Path]()
    waiting = [path]
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            waiting += [root / name for name in TEMPLATE.findall(path.read_text(encoding="utf-8"))]
            modules = needed(root, path) if path.suffix == ".py" else ()
            first_party = [name for name in modules if name.split(".")[0] in PACKAGES]
            waiting += [file for name in first_party if (file := file_of(root, name))]
    return found


def sources(root: Path, task: str) -> list[str]:
    """What a stage that runs ``tasks.<task>`` depends on: files, and folders of which it needs most files."""
    files = {path.relative_to(root) for path in closure(root, root / f"tasks/{task}.py") if says_something(path)}
    folders = {folder for path in files for folder in path.parents[:-2]}
    for folder in sorted(folders, key=lambda folder: len(folder.parts)):
        inside = {path for path in files if folder in path.parents}
        every = sum(says_something(path) for path in (root / folder).rglob("*") if path.suffix in (".py", ".j2"))
        if len(inside) >= MOST * every:
            files = files - inside | {folder}
    return sorted((path.as_posix() for path in files), key=lambda name: (not name.startswith("tasks"), name))


def written(root: Path, text: str) -> str:
    """The text of dvc.yaml with the current sources of each stage."""
    tasks = [(found.start(), found[1]) for found in COMMAND.finditer(text)]

    def listed(found: re.Match[str]) -> str:
        task = max((start, task) for start, task in tasks if start < found.start())[1]
        return f"{found[1]}{paths.SOURCES}\n{_wrapped(sources(root, task), found[1])}{found[3]}]"

    return LISTED.sub(listed, text)


def _wrapped(names: Iterable[str], indent: str) -> str:
    lines = textwrap.wrap(", ".join(names), WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return "".join(f"{indent}{line}\n" for line in lines)


def main() -> None:
    """Write dvc.yaml, or compare."""
    parser = argparse.ArgumentParser(prog="python -m flows.sources", description="Write the sources into dvc.yaml.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if something has changed")
    given = parser.parse_args()
    root = Path.cwd()
    path = Path("dvc.yaml")
    text = path.read_text(encoding="utf-8")
    if (now := written(root, text)) == text:
        return
    if given.check:
        sys.exit("error: dvc.yaml: the sources of a stage are not those that it imports; run `make graph`")
    path.write_text(now, encoding="utf-8")
    print("dvc.yaml: written")


if __name__ == "__main__":
    main()
