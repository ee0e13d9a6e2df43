"""The source files that each stage depends on, found by its imports and written into dvc.yaml: ``make graph``.

``python -m flows.sources`` writes; with ``--check`` it only says, by status 1, that it would write something else.
In a stage's ``deps`` all that stands behind the mark is its to write.

Some modules are named and not imported, as a string ``module:attribute`` that is assigned to a name (the parts of an
objective, for one). A file depends on them if it calls ``resolve_name`` and reads an attribute of that name.

A template is named by its path, in double quotes: by the file that fills it in, and by templates that include it.
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
"""A folder stands for its files from this share of them on: a list that nobody reads is worth less than a stage that
runs once too often."""


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def says_something(path: Path) -> bool:
    """Whether a file holds more than its docstring, as every template does."""
    return path.suffix != ".py" or any(not isinstance(node, ast.Expr) for node in tree(path).body)


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports anywhere in it, inside functions too, with the packages above them."""
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
    """The file of a module of the project; None for what is none."""
    path = root.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def closure(root: Path, path: Path) -> set[Path]:
    """The files of the project that a file needs, templates too, itself included."""
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
    """What a stage that runs ``tasks.<task>`` depends on: files, and folders most of whose files it needs."""
    files = {path.relative_to(root) for path in closure(root, root / f"tasks/{task}.py") if says_something(path)}
    folders = {folder for path in files for folder in path.parents[:-2]}
    for folder in sorted(folders, key=lambda folder: len(folder.parts)):
        inside = {path for path in files if folder in path.parents}
        every = sum(says_something(path) for path in (root / folder).rglob("*") if path.suffix in (".py", ".j2"))
        if len(inside) >= MOST * every:
            files = files - inside | {folder}
    return sorted((path.as_posix() for path in files), key=lambda name: (not name.startswith("tasks"), name))


def written(root: Path, text: str) -> str:
    """The text of dvc.yaml with the sources of each stage as they are now."""
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
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where something would be")
    given = parser.parse_args()
    root = Path.cwd()
    path = Path("dvc.yaml")
    text = path.read_text(encoding="utf-8")
    if (now := written(root, text)) == text:
        return
    if given.check:
        sys.exit("error: dvc.yaml: a stage's sources are not those that it imports; expected `make graph` to be run")
    path.write_text(now, encoding="utf-8")
    print("dvc.yaml: written")


if __name__ == "__main__":
    main()
