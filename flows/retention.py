"""``plm gc``, and the last step of a scheduled run: deletes what the section ``retention`` does not keep."""

from pathlib import Path
from typing import Any

from flows import settings
from flows.checkout import only_one
from flows.health import finding
from flows.health.finding import Report
from flows.health.local import old_compiled, old_journals, old_snapshots, old_sweeps
from flows.health.outputs import old_objects
from flows.health.registry import old_versions
from flows.health.schedule import old_runs
from flows.outcome import UserError

CHECKS: dict[str, finding.Check] = {
    "registry": old_versions,
    "cache": old_objects,
    "snapshots": old_snapshots,
    "journals": old_journals,
    "sweeps": old_sweeps,
    "compiled": old_compiled,
    "Prefect": old_runs,
}


def collect(root: Path, delete: bool) -> Report:
    """Find what is not kept, and delete it if ``delete`` is set, while no pipeline runs in the checkout.

    Raises:
        UserError: ``params.yaml`` has no section ``retention`` or a wrong one, or a pipeline runs.
    """
    rules = settings.retention(root)
    if rules is None:
        example = "{versions: 20, champions: 5, days: 90, snapshots_days: 30}"
        raise UserError(f"{root / 'params.yaml'}: no section retention, so everything is kept; for example {example}")
    with only_one(root):
        return finding.look(CHECKS, root, rules, mend=delete)


def last_step(root: Path) -> None:
    """Delete like ``collect``, in a checkout that is held, if a deployment runs this flow; errors become warnings."""
    from prefect.logging import get_run_logger
    from prefect.runtime import deployment

    if deployment.get_id() is None:
        return
    log = get_run_logger()
    try:
        if (rules := settings.retention(root)) is None:
            return
        report = finding.look(CHECKS, root, rules, mend=True)
    except Exception as error:  # noqa: BLE001 whatever it is, the run has done its work
        log.warning("nothing was cleaned up: %s", " ".join(str(error).split()))
        return
    for name, why in report.unseen.items():
        log.warning("not cleaned up: %s: %s", name, why)
    if report.mended:
        log.info("cleaned up: %s", "; ".join(each.where for each in report.mended))


def plain(report: Report, deleted: bool) -> dict[str, Any]:
    """The report for JSON."""
    found = report.mended + report.findings
    waste = [{"what": each.where, "why": each.what, "bytes": each.bytes} for each in found]
    return {"deleted": deleted, "waste": waste, "bytes": _bytes(report), "failed": report.unseen}


def show(report: Report, deleted: bool) -> None:
    """Print what is deleted, why, and how much that frees."""
    from rich.filesize import decimal
    from rich.table import Table

    from flows.display import console

    out = console()
    found = report.mended + report.findings
    if found:
        table = Table("what", "why", "frees", title="Deleted" if deleted else "To be deleted")
        for each in found:
            table.add_row(each.where, each.what, "" if each.bytes is None else decimal(each.bytes))
        out.print(table)
    for name, why in report.unseen.items():
        out.print(f"[yellow]warning[/yellow]        {name}: {why}")
    out.print(f"{decimal(_bytes(report))} {'freed' if deleted else 'to be freed'}" if found else "nothing to delete")
    if found and not deleted:
        out.print("`plm gc --yes` deletes it")


def _bytes(report: Report) -> int:
    """How many bytes that frees, as far as is known."""
    return sum(each.bytes or 0 for each in report.mended + report.findings)
