"""``plm gc``, and the last step of a scheduled run: deletes what the section ``retention`` does not keep.

``flows/waste`` defines what is deleted, one file per store. If one store is unreachable, the others are still cleaned
up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows import settings
from flows.checkout import only_one
from flows.outcome import UserError
from flows.waste.files import cached, compiled, journals, snapshots, sweeps
from flows.waste.flowruns import flow_runs
from flows.waste.registry import registered
from flows.waste.waste import Find, Waste

FINDERS: Mapping[str, Find] = {
    "registry": registered,
    "cache": cached,
    "snapshots": snapshots,
    "journals": journals,
    "sweeps": sweeps,
    "compiled": compiled,
    "Prefect": flow_runs,
}


@dataclass(frozen=True)
class Report:
    """What was, or would be, deleted."""

    deleted: bool
    waste: list[Waste] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why something could not be checked or deleted, by its name."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        waste = [{"what": each.what, "why": each.why, "bytes": each.bytes} for each in self.waste]
        return {"deleted": self.deleted, "waste": waste, "bytes": self.bytes, "failed": self.failed}

    @property
    def bytes(self) -> int:
        """How many bytes that frees, as far as is known."""
        return sum(each.bytes or 0 for each in self.waste)


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
        return _collect(root, rules, delete)


def last_step(root: Path) -> None:
    """Delete like ``collect``, in a checkout that is held, if a deployment runs this flow; errors become warnings."""
    from prefect.logging import get_run_logger
    from prefect.runtime import deployment

    if deployment.get_id() is None:
        return
    log = get_run_logger()
    try:
        rules = settings.retention(root)
        if rules is None:
            return
        report = _collect(root, rules, delete=True)
    except Exception as error:  # noqa: BLE001 whatever it is, the run has done its work
        log.warning("nothing was cleaned up: %s", " ".join(str(error).split()))
        return
    for name, why in report.failed.items():
        log.warning("not cleaned up: %s: %s", name, why)
    if report.waste:
        log.info("cleaned up: %s", "; ".join(each.what for each in report.waste))


def _collect(root: Path, rules: settings.Retention, delete: bool) -> Report:
    report = Report(delete)
    for name, find in FINDERS.items():
        try:
            report.waste.extend(find(root, rules))
        except (UserError, OSError) as error:
            report.failed[name] = " ".join(str(error).split())
    for each in list(report.waste) if delete else []:
        try:
            each.delete()
        except (UserError, OSError) as error:
            report.failed[each.what] = " ".join(str(error).split())
            report.waste.remove(each)
    return report


def show(report: Report) -> None:
    """Print what is deleted, why, and how much that frees."""
    from rich.filesize import decimal
    from rich.table import Table

    from flows.display import console

    out = console()
    if report.waste:
        table = Table("what", "why", "frees", title="Deleted" if report.deleted else "To be deleted")
        for each in report.waste:
            table.add_row(each.what, each.why, "" if each.bytes is None else decimal(each.bytes))
        out.print(table)
    for name, why in report.failed.items():
        out.print(f"[yellow]warning[/yellow]        {name}: {why}")
    verb = "freed" if report.deleted else "to be freed"
    out.print(f"{decimal(report.bytes)} {verb}" if report.waste else "nothing to delete")
    if report.waste and not report.deleted:
        out.print("`plm gc --yes` deletes it")
