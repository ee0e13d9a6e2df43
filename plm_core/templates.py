"""Pages for people from Jinja templates: Python supplies the figures, a template the words and the layout.

A template is named by its path in the project, as a string in double quotes, both where it is rendered and where
another template includes it, so that a test can find the stages that depend on it.
"""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from plm_core.shared import paths

MARKUP = "|".join(
    (
        r"[^\w\s.,:;'\"()%?/+=-]",
        r":(?=\S)",  # of an address, or of the name of an emoji
        r"(?<![^\W_])_|_(?![^\W_])",
        r"\.(?=[^\W\d])|(?<=[^\W\d])\.(?=\S)",  # of an address
        r"(?<=\d)\.(?=\s|$)|[-+](?=\s|$)",  # of a list
    )
)
"""Characters that may be Markdown syntax at their position."""
READ: set[Path] = set()
"""The templates that this process has read."""


def render(template: str, **figures: Any) -> str:
    """Render a template with these figures; ``paths`` are available to all templates.

    Raises:
        FileNotFoundError: there is no such template.
        UndefinedError: it uses a figure that is not given.
    """
    return _ENVIRONMENT.get_template(template).render(figures)


def cell(text: str) -> str:
    """Escape text so that it ends no table cell and starts no markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`").replace("*", "\\*")


def code(text: str) -> str:
    """Any text as a code span of Markdown, on one line, also in a table: nothing in it is a link or an image."""
    line = " ".join(text.split()).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if "`" in line[:1] + line[-1:] else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def plain(text: str) -> str:
    """Any text as Markdown that shows it literally on one line, also in tables and where bare URLs become links.

    It uses character references, which start no markup in any dialect; the rules for backslashes differ.
    """
    return re.sub(MARKUP, lambda match: f"&#{ord(match[0])};", " ".join(text.split()))


def spaced(table: str) -> str:
    """A Markdown table with room between its cells, for pages that give it none."""
    # MLflow's renderer strips spaces, so a zero-width character comes last.
    return re.sub(r"(?<=[^-]) \|(?=.)", "\u2003\u200c|", table)


def aligned(table: str) -> str:
    """A Markdown table with its columns padded to equal width."""
    rows = [line[2:-2].split(" | ") for line in table.splitlines()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([c.ljust(w, "-" if c == "---" else " ") for c, w in zip(row, widths, strict=True)] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in padded)


def _read(template: str) -> tuple[str, str, None]:
    path = Path(__file__).parents[1] / template
    READ.add(path)
    return path.read_text(encoding="utf-8"), str(path), None


_ENVIRONMENT = Environment(
    loader=FunctionLoader(_read),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.globals["paths"] = paths
_ENVIRONMENT.filters |= {"aligned": aligned, "cell": cell, "code": code, "plain": plain, "spaced": spaced}
_ENVIRONMENT.filters |= {"fmt": format, "json": json.dumps, "mean": fmean, "repr": repr}
