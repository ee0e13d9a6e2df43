"""Writes ``dvc.lock``, one entry at a time. Used by ``flows/graph.py`` when a stage has ended."""

import re
from pathlib import Path
from typing import Any

from flows.locks import replace_text


def record(node: Any) -> None:
    """Write an entry of ``dvc.lock`` atomically."""
    from dvc.stage.serialize import to_lockfile
    from dvc.utils.serialize import dumps_yaml

    path = Path(node.dvcfile._lockfile.path)
    lock = path.read_text(encoding="utf-8") if path.exists() else "schema: '2.0'\n"
    replace_text(path, replaced(lock, dumps_yaml({"stages": to_lockfile(node)})))


def replaced(lock: str, one: str) -> str:
    """The text of a ``dvc.lock`` with the entry of ``one``, the text of another that holds a single stage.

    DVC itself reads all stages with their comments and writes them all again, which takes 1 s for 40.
    """
    before, entries, rest = _entries(lock if re.search("^stages:$", lock, re.MULTILINE) else f"{lock}stages:\n")
    by_name = {entry.partition("\n")[0]: entry for entry in (*entries, *_entries(one)[1])}
    return "".join((before, *by_name.values(), rest))


def _entries(lock: str) -> tuple[str, list[str], str]:
    """The text before the stages, the text of each stage, and the text after them."""
    before, stages, rest = re.split(r"(?<=^stages:\n)((?:[ \n].*\n?)*)", lock, maxsplit=1, flags=re.MULTILINE)
    return before, re.split(r"^(?=  \S)", stages, flags=re.MULTILINE)[1:], rest
