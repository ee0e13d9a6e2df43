"""Two models side by side, with significance tests: ``python -m tasks.commands.compare A B [--out FOLDER]``.

``plm compare`` runs it. A and B are names of `models` in params.yaml (their evidence is in ``artifacts/evidence``) or
evidence folders. The same evidence gives the same bytes.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from plm_core.config import UserError
from plm_core.evaluation.comparison import compare
from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from plm_core.templates import render
from tasks.runtime.stage import main


def write(
    first: Annotated[str, Argument(help="Take one of `models` in params.yaml, or a folder of evidence.")],
    second: Annotated[str, Argument(help="Compare it with this one.")],
    out: Annotated[Path | None, Option(show_default="artifacts/compare/A-B", help="Write into this folder.")] = None,
    name: Annotated[list[str] | None, Option(help="Name for the output; given once per model.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the JSON instead of the page.")] = False,
) -> None:
    """Compare two models, print the page or the JSON, and write both.

    Raises:
        UserError: a side has no evidence, the two cannot be compared, or only one is given a name.
    """
    if name and len(name) != 2:
        raise UserError(f"--name: found {len(name)}; expected two, for the first and for the second")
    sides = (_folder(first), _folder(second))
    first_name, second_name = name or (Path(given).name or Path(given).resolve().name for given in (first, second))
    if first_name == second_name:
        first_name, second_name = f"{first_name} (1)", f"{second_name} (2)"
    result = compare(sides, (first_name, second_name))
    folder = out or paths.COMPARE / f"{first_name}-{second_name}".replace(" ", "")
    figures = asdict(result)
    page = render("tasks/reporting/templates/compare.md.j2", **figures)
    numbers = json.dumps(figures, indent=2, allow_nan=False)
    atomic_text(folder / "compare.md", page)
    atomic_text(folder / "compare.json", numbers + "\n")
    print(numbers if as_json else f"{page}\nWritten to {folder}/compare.md and compare.json.")


def _folder(given: str) -> Path:
    """The evidence folder of the model with this name, or this folder itself."""
    for folder in (paths.EVIDENCE / given, Path(given)):
        if folder.is_dir():
            return folder
    evaluated = ", ".join(sorted(path.name for path in paths.EVIDENCE.glob("*"))) or "none yet"
    raise UserError(f"{given}: neither a model with evidence nor a folder; models with evidence: {evaluated}")


if __name__ == "__main__":
    main(write)
