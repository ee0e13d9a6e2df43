"""The `plm` commands that maintain a project: problems, backups, cleaning up. Part of ``cli.py``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from flows.command import Json, project
from flows.outcome import UserError

if TYPE_CHECKING:
    from flows.backup import Summary


def doctor(
    everything: Annotated[bool, Option("--all", help="Read all versions and DVC's cache byte by byte.")] = False,
    fix: Annotated[
        bool, Option("--fix", help="Fix what can be fixed without losing a result, version or decision.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find problems, and say how to fix them.

    Exit status: 0 when all is well, 1 when there is a problem, 2 when not everything could be checked.
    """
    from flows import doctor as health

    report = health.look(project(), everything, mend=fix)
    print(json.dumps(health.plain(report), indent=2) if as_json else "\n".join(health.lines(report)))
    raise typer.Exit(health.status(report))


def gc(
    yes: Annotated[bool, Option("--yes", help="Delete; the default without a terminal.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only show what would be deleted; the default at a terminal.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete what `retention` in params.yaml does not keep."""
    from rich.filesize import decimal
    from rich.table import Table

    from flows import doctor as health
    from flows.display import console

    if yes and dry_run:
        raise UserError("--yes, --dry-run: expected one of them")
    delete = yes or not (dry_run or sys.stdin.isatty())
    report = health.collect(project(), delete)
    found = report.mended + report.findings
    size = sum(each.bytes or 0 for each in found)  # as far as is known
    if as_json:
        waste = [{"what": each.where, "why": each.what, "bytes": each.bytes} for each in found]
        print(json.dumps({"deleted": delete, "waste": waste, "bytes": size, "failed": report.unseen}, indent=2))
        raise typer.Exit(int(bool(report.unseen)))
    out = console()
    if found:
        table = Table("what", "why", "frees", title="Deleted" if delete else "To be deleted")
        for each in found:
            table.add_row(each.where, each.what, "" if each.bytes is None else decimal(each.bytes))
        out.print(table)
    for name, why in report.unseen.items():
        out.print(f"[yellow]warning[/yellow]        {name}: {why}")
    out.print(f"{decimal(size)} {'freed' if delete else 'to be freed'}" if found else "nothing to delete")
    if found and not delete:
        out.print("`plm gc --yes` deletes it")
    raise typer.Exit(int(bool(report.unseen)))


def backup(
    target: Annotated[str, Argument(help="Write into this folder, or to an address such as s3://bucket/folder.")],
    keep: Annotated[int | None, Option(min=1, show_default="all", help="Keep only the newest N backups.")] = None,
) -> None:
    """Copy the registry, snapshots, imports and results."""
    from flows import backup as backups

    _show(backups.backup(project(), _address(target), keep), "copied")


def restore(
    source: Annotated[str, Argument(help="Read the backups in this folder or at this address.")],
    at: Annotated[
        str, Option(show_default="the newest", help="Use the newest whose name starts with this: 2026-11-22.")
    ] = "",
) -> None:
    """Restore a backup; nothing that is here is lost."""
    from flows import backup as backups

    _show(backups.restore(project(), _address(source), at), "restored from it")


def _address(given: str) -> str:
    return given if "://" in given else str(Path(given).resolve())


def _show(summary: "Summary", done: str) -> None:
    moved = f"{summary.moved / 1e6:,.1f} MB {done}"
    print(f"backup {summary.name}: {summary.files:,} files of {summary.size / 1e6:,.1f} MB, {moved}")
    for note in summary.notes:
        print(note)
