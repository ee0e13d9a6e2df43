"""Which files of the project a file needs: those that it imports, in functions too, and those that it names.

Some modules are not imported but named, by a string ``module:attribute`` that is assigned to a name (such as the parts
of an objective). A file depends on them if it calls ``resolve_name`` and reads an attribute of that name. A template is
named by its path in double quotes.
"""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("plm_core", "tasks")
PLACE = re.compile(r"(\w+(?:\.\w+)+):\w+")
TEMPLATE = re.compile(r'"([\w./-]+\.j2)"')


@functools.cache
def tree(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def says_something(path):
    """Whether a file contains more than its docstring; always true for a template."""
    return path.suffix != ".py" or any(not isinstance(node, ast.Expr) for node in tree(path).body)


@functools.cache
def imports(path):
    """The modules that a file imports, and the packages above them."""
    modules = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name.rsplit(".", cut)[0] for name in modules for cut in range(name.count(".") + 1))


@functools.cache
def places():
    """The modules that are named as ``module:attribute``, by the names that these strings are assigned to."""
    modules = {}
    for path in sorted((ROOT / PACKAGES[0]).rglob("*.py")):
        for node in ast.walk(tree(path)):
            named = []
            if isinstance(node, ast.keyword) and node.arg:
                named = [node.arg]
            elif isinstance(node, ast.Assign):
                named = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in named:
                if isinstance(node.value, ast.Constant) and (place := PLACE.fullmatch(str(node.value.value))):
                    modules.setdefault(name, set()).add(place[1])
    return modules


def file_of(module):
    """The file of a module of the project; None if there is none."""
    path = ROOT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def closure(path):
    """The files of the project that a file needs, including templates and itself."""
    files = set()
    waiting = [path]
    while waiting:
        if (path := waiting.pop()) in files:
            continue
        files.add(path)
        waiting += [ROOT / name for name in TEMPLATE.findall(path.read_text(encoding="utf-8"))]
        modules = set(imports(path)) if path.suffix == ".py" else set()
        if "pkgutil" in modules:
            read = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
            modules |= {module for name in read for module in places().get(name, ())}
        first_party = [name for name in modules if name.split(".")[0] in PACKAGES]
        waiting += [file for name in first_party if (file := file_of(name))]
    return files
