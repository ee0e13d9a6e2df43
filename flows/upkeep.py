"""The commands of `plm` that keep a project well: ``doctor`` and ``gc``. Added to the others by ``flows/cli.py``."""

import json
import sys
from typing import Annotated

import typer
from typer import Option

from flows.command import project

Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]


def doctor(
    everything: Annotated[bool, Option("--all", help="Read all versions and DVC's cache byte by byte.")] = False,
    mend: Annotated[bool, Option("--mend", help="Mend what can be mended without losing anything.")] = False,
    as_json: Json = False,
) -> None:
    """Find what is wrong with files, registry and schedule, and what mends it.

    Exit status: 0 when all is well, 1 when something is wrong, 2 when it could not look at everything.
    """
    from flows import doctor as health

    report = (health.mend if mend else health.look)(project(), everything)
    print(json.dumps(report.plain(), indent=2) if as_json else "\n".join(health.lines(report)))
    raise typer.Exit(report.status)


def gc(
    yes: Annotated[bool, Option("--yes", help="Delete; without a terminal that is the default.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say what would be deleted; the default at a terminal.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete what the section `retention` of params.yaml does not keep."""
    from flows import retention

    report = retention.collect(project(), delete=yes or not (dry_run or sys.stdin.isatty()))
    if as_json:
        print(json.dumps(report.plain(), indent=2))
    else:
        retention.show(report)
    raise typer.Exit(int(bool(report.failed)))
