"""``plm doctor`` compares the stores with each other, and fixes what can be fixed without losing anything."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.maintenance import checkout_checks, findings, output_checks, prefect_checks, registry_checks
from flows.maintenance.findings import Finding, Report

CHECKS: dict[str, findings.Check] = {
    "outputs": output_checks.outputs,
    "cache": output_checks.cached,
    "journals": checkout_checks.journals,
    "registry": registry_checks.registry,
    "snapshots": checkout_checks.snapshots,
    "schedule": prefect_checks.schedule,
    "disk": checkout_checks.disk,
}
"""Each finds problems."""

WELL, WRONG, UNSEEN = range(3)
"""Exit statuses: all is well; there is a problem; no problem was found, but not everything could be checked."""


def run_checks(root: Path, everything: bool = False, mend: bool = False) -> Report:
    """Run every check; if ``mend`` is set, fix what is safe to fix, and look again for what is left."""
    # A fix may reveal something else, or need a second look to be believed.
    mended = findings.apply_checks(CHECKS, root, everything, mend=True).mended if mend else []
    report = findings.apply_checks(CHECKS, root, everything)
    report.mended.extend(finding for finding in mended if finding not in report.findings)
    return report


def status(report: Report) -> int:
    """The exit status."""
    return WRONG if report.findings else UNSEEN if report.unseen else WELL


def report_data(report: Report) -> dict[str, Any]:
    """The report for JSON."""

    def shown(findings: list[Finding]) -> list[dict[str, Any]]:
        return [
            {"what": finding.what, "where": finding.where, "mend": finding.mend, "safe": finding.safe is not None}
            for finding in findings
        ]

    return asdict(report, dict_factory=dict) | {"findings": shown(report.findings), "mended": shown(report.mended)}


def report_lines(report: Report) -> Iterator[str]:
    """The report for people."""
    for finding in report.mended:
        yield f"fixed          {finding.where}: {finding.what}"
    for finding in report.findings:
        yield f"problem        {finding.where}: {finding.what}"
        yield f"               fix: {finding.mend}{' (--fix does it)' if finding.safe else ''}"
    for name, why in report.unseen.items():
        yield f"not checked    {name}: {why}"
    for note in report.notes:
        yield f"               {note}"
    if status(report) == WELL:
        yield "all is well"
