"""Two models side by side, with what chance explains: ``python -m tasks.compare A B [--out FOLDER]``.

``plm compare`` runs it. A and B are names of `models` in params.yaml (their evidence lies in ``artifacts/evidence``) or
evidence folders. It prints a page of Markdown and writes it, with all numbers beside it as JSON, into
``artifacts/compare/A-B``; the same evidence gives the same bytes. How the numbers are made says
``plm_core/evaluation/significance.py``.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from plm_core.config import UserError
from plm_core.evaluation.comparison import Compared, Comparison, Estimate, compare
from plm_core.files import atomic_text
from plm_core.shared import paths
from tasks.runtime.stage import main

READING = """\
- Each score stands with its {level:.0%} interval: resampled examples (and, where a task has several seeds, seeds). A
  difference is {second} less {first}.
- **p**: how often chance alone would make a difference as large, by the test beside it. **Holm**: the same, corrected
  for the number of tasks.
- **effect**: Cohen's g. Of the examples on which one of the two is better, the share on which {second} is, less a half;
  0.05 is called small, 0.15 medium, 0.25 large.
- A model is better where p (Holm's, for a task) is at most {alpha:g} and the interval of the difference does not
  reach zero. "No difference shown" is not "equal": all that lies in the interval is possible."""


def write(
    first: Annotated[str, Argument(help="Take one of `models` in params.yaml, or a folder of evidence.")],
    second: Annotated[str, Argument(help="Compare it with this one.")],
    out: Annotated[Path | None, Option(show_default="artifacts/compare/A-B", help="Write into this folder.")] = None,
    name: Annotated[list[str] | None, Option(help="Call them so; given once for each.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the JSON instead of the page.")] = False,
) -> None:
    """Compare two models, print the page or the JSON, and write both.

    Raises:
        UserError: a side has no evidence, or the two cannot be compared.
    """
    sides = (_folder(first), _folder(second))
    one, two = name or (_name(first), _name(second))
    if one == two:
        one, two = f"{one} (1)", f"{two} (2)"
    result = compare(sides, (one, two))
    folder = out or paths.COMPARE / f"{one}-{two}".replace(" ", "")
    page = render(result)
    numbers = json.dumps(asdict(result), indent=2, allow_nan=False)
    atomic_text(folder / "compare.md", page)
    atomic_text(folder / "compare.json", numbers + "\n")
    print(numbers if as_json else f"{page}\nWritten to {folder}/compare.md and compare.json.")


def render(result: Comparison) -> str:
    """The page: tables that are aligned as plain text too."""
    heads = ["", "measured", "examples", result.first, result.second, "difference"]
    heads += ["p", "test", "Holm", "effect", "verdict"]
    parts = [f"# {result.first} and {result.second}"]
    for title, rows in (("Tasks", result.tasks), ("Averages", result.averages), ("Likelihood", result.likelihood)):
        if rows:
            parts += [f"## {title}", aligned(heads, [_cells(row) for row in rows])]
    if result.notes:
        parts += ["## Not compared", "\n".join(f"- {note}" for note in result.notes)]
    reading = READING.format(level=1 - result.alpha, alpha=result.alpha, first=result.first, second=result.second)
    return "\n\n".join([*parts, "## How to read this", reading]) + "\n"


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are as wide as what they hold."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * max(3, width) for width in widths], *rows]
    widths = [max(3, width) for width in widths]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )


def _cells(row: Compared) -> list[str]:
    verdict = f"{row.better} is better" if row.better else "no difference shown"
    return [
        row.name,
        row.score,
        f"{row.examples:,}",
        _estimate(row.first, ""),
        _estimate(row.second, ""),
        _estimate(row.difference, "+"),
        _p(row.p),
        row.test,
        "" if row.holm is None else _p(row.holm),
        "" if row.effect is None else f"{row.effect:+.2f}",
        verdict,
    ]


def _estimate(estimate: Estimate, sign: str) -> str:
    low, high = estimate.interval.low, estimate.interval.high
    return f"{estimate.value:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def _folder(given: str) -> Path:
    """The evidence of a model of this name, or in this folder."""
    for folder in (paths.EVIDENCE / given, Path(given)):
        if folder.is_dir():
            return folder
    known = ", ".join(sorted(path.name for path in paths.EVIDENCE.glob("*"))) or "none yet"
    raise UserError(f"{given}: no evidence of a model of this name, and no folder; models with evidence: {known}")


def _name(given: str) -> str:
    return Path(given).name or Path(given).resolve().name


if __name__ == "__main__":
    main(write)
