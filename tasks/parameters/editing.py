"""Changes parameters in the text of their file; everything else in it, including comments, stays.

Not with ruamel.yaml: it keeps comments too, but moves those behind anchors and ``null``.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from plm_core.config import UserError
from plm_core.shared.params_file import PARAMS, parsed


def edit_text(text: str, changes: Mapping[str, Any]) -> str:
    """The text of a parameter file with new values for these dotted names.

    A section's parameters are on one line each; a new name is added at the end of its section.

    Raises: UserError: the section of a name does not exist or is not a section; or the file is written in a way that
    only a person can edit.
    """
    text = text if text.endswith("\n") else f"{text}\n"
    for name, value in changes.items():
        text = _with(text, name, value)
        if not _says(text, name, value):
            raise UserError(f"{PARAMS}: {name} is written in a way that cannot be edited automatically; set it by hand")
    return text


def _says(text: str, name: str, value: Any) -> bool:
    """Whether the text is YAML that gives the dotted name this value."""
    try:
        node = parsed(text)
        for key in name.split("."):
            node = node[key]
    except (yaml.YAMLError, UserError, KeyError, TypeError):
        return False
    return bool(node == value)


def _with(text: str, name: str, value: Any) -> str:
    *above, last = name.split(".")
    section = yaml.compose(text, yaml.SafeLoader)
    for key in above:
        section = _entry(section, key)[1]
    if not isinstance(section, yaml.MappingNode) or not section.value:
        raise UserError(f"{'.'.join(above)}: no such section in {PARAMS}; expected one with parameters, to set {last}")
    key, old = _entry(section, last)
    if old is not None:
        lines = isinstance(old, yaml.CollectionNode) and not old.flow_style
        if lines and isinstance(value, Mapping) and value:
            return text[: old.start_mark.index] + _lines(value, old.start_mark.column) + text[_end(text, old) :]
        empty = old.start_mark.index == old.end_mark.index
        start = f"{text[: key.end_mark.index]}: " if lines or empty else text[: old.start_mark.index]
        return start + one_line(value) + text[_end(text, old) :]
    if section.flow_style:
        inside = yaml.safe_load(text[section.start_mark.index : _end(text, section)])
        return _with(text, ".".join(above), inside | {last: value})
    line = text.find("\n", _end(text, section))
    return f"{text[:line]}\n{' ' * section.start_mark.column}{last}: {one_line(value)}{text[line:]}"


def _entry(section: Any, key: str) -> tuple[Any, Any]:
    pairs = section.value if isinstance(section, yaml.MappingNode) else []
    return next(((name, value) for name, value in pairs if name.value == key), (None, None))


def _end(text: str, node: yaml.Node) -> int:
    """Where a value ends; for the parser, a section or a text over several lines ends where the next item begins."""
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return node.start_mark.index + len(text[node.start_mark.index : node.end_mark.index].rstrip())
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    if not isinstance(last, tuple):
        return _end(text, last)
    key, value = last
    if value.start_mark.index > key.start_mark.index:
        return _end(text, value)
    alias = re.compile(r": *\*\S+").match(text, key.end_mark.index)  # its value is the node that it names
    if alias is None:
        raise UserError(f"{PARAMS}: {key.value}: its alias is on another line; expected both on one")
    return alias.end()


def _lines(value: Mapping[str, Any], column: int) -> str:
    """The parameters of a section, one per line."""
    return f"\n{' ' * column}".join(f"{one_line(name)}: {one_line(entry)}" for name, entry in value.items())


def one_line(value: Any) -> str:
    """A value as YAML on one line."""
    flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return flow.removesuffix("\n").removesuffix("\n...")
