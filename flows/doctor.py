"""``plm doctor``: compares the stores with each other, and fixes what can be fixed without losing anything."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.health import finding
from flows.health.finding import Finding, Report
from flows.health.local import disk, journals, locks, snapshots
from flows.health.outputs import cached, outputs
from flows.health.registry import registry
from flows.health.schedule import schedule

CHECKS: dict[str, finding.Check] = {
    "outputs": outputs,
    "cache": cached,
    "journals": journals,
    "registry": registry,
    "snapshots": snapshots,
    "locks": locks,
    "schedule": schedule,
    "disk": disk,
}

WELL, WRONG, UNSEEN = range(3)
"""Exit statuses: all is well; there is a problem; no problem was found, but not everything could be checked."""


def look(root: Path, everything: bool = False, mend: bool = False) -> Report:
    """Run every check; if ``mend`` is set, fix what is safe to fix, and look again for what is left."""
    mended = finding.look(CHECKS, root, everything, mend=True).mended if mend else []
    report = finding.look(CHECKS, root, everything)
    report.mended.extend(each for each in mended if each not in report.findings)
    return report


def status(report: Report) -> int:
    """The exit status."""
    return WRONG if report.findings else UNSEEN if report.unseen else WELL


def plain(report: Report) -> dict[str, Any]:
    """The report for JSON."""

    def shown(findings: list[Finding]) -> list[dict[str, Any]]:
        return [
            {"what": each.what, "where": each.where, "mend": each.mend, "safe": each.safe is not None}
            for each in findings
        ]

    return asdict(report, dict_factory=dict) | {"findings": shown(report.findings), "mended": shown(report.mended)}


def lines(report: Report) -> Iterator[str]:
    """The report for people."""
    for each in report.mended:
        yield f"fixed          {each.where}: {each.what}"
    for each in report.findings:
        yield f"problem        {each.where}: {each.what}"
        yield f"               fix: {each.mend}{' (--fix does it)' if each.safe else ''}"
    for name, why in report.unseen.items():
        yield f"not checked    {name}: {why}"
    for note in report.notes:
        yield f"               {note}"
    if status(report) == WELL:
        yield "all is well"
