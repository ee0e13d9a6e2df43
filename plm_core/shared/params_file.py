"""The one reader of `params.yaml`, for tasks and for flows."""

import copy
import functools
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from plm_core.shared.errors import UserError

PARAMS = Path("params.yaml")


class _StrictLoader(yaml.CSafeLoader):
    """YAML without two traps: a key that appears twice, and one such as ``no``, which means false. It uses libyaml, ten
    times as fast as PyYAML's own parser."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            where = f"{PARAMS}:{key.start_mark.line + 1}: {key.value}"
            if keys.count(key.value) > 1:
                raise UserError(f"{where} appears twice in its section")
            if key.tag == "tag:yaml.org,2002:bool":
                raise UserError(f"{where} is true or false in YAML, not a name; expected it in quotes")
        return super().construct_mapping(node, deep)


# A date is text, as in JSON: sections are checked as JSON.
_StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def sections(root: Path = Path()) -> dict[str, Any]:
    """The sections of the `params.yaml` in the folder ``root``, not to be changed. Raises UserError: the file is
    missing or not YAML."""
    try:
        values = parsed((root / PARAMS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{root / PARAMS}: missing; run this in the project's folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{root / PARAMS}: not valid YAML: {' '.join(str(error).split())}") from error
    return values if isinstance(values, dict) else {}


def read(name: str, root: Path = Path()) -> Any:
    """The plain value of a dotted section, such as ``pretrain.gpt``. Raises UserError: as ``sections``, or there is no
    such section."""
    value: Any = sections(root)
    for depth, key in enumerate(name.split(".")):
        if not isinstance(value, dict) or key not in value:
            place = ".".join(name.split(".")[: depth + 1])
            keys = f"; it has {', '.join(map(str, value))}" if isinstance(value, dict) else ""
            raise UserError(f"{place}: no such section in {PARAMS}{keys}")
        value = value[key]
    return copy.deepcopy(value)


@functools.lru_cache(maxsize=1)
def parsed(text: str) -> Any:
    """The values of a file of parameters: parsed once while it stays the same, because a stage reads many sections."""
    return yaml.load(text, _StrictLoader)
