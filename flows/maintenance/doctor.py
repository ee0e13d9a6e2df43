"""``plm doctor`` compares the stores with each other, and fixes what can be fixed without losing anything. ``plm gc``,
and the last step of a scheduled run, deletes what the section ``retention`` does not keep."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows import flow_configs
from flows.maintenance import checkout_checks, findings, output_checks, prefect_checks, registry_checks
from flows.maintenance.findings import Finding, Report
from flows.run.checkout import lock_checkout
from plm_core.shared.errors import UserError

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
WASTE: dict[str, findings.Check] = {
    "registry": registry_checks.old_versions,
    "cache": output_checks.old_objects,
    "files": checkout_checks.old_files,
    "compiled": checkout_checks.old_compiled,
    "Prefect": prefect_checks.old_runs,
}
"""Each finds what is not kept."""

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


def collect_garbage(root: Path, delete: bool) -> Report:
    """Find what is not kept, and delete it if ``delete`` is set, while no pipeline runs in the checkout.

    Raises:
        UserError: ``params.yaml`` has no section ``retention`` or a wrong one, or a pipeline runs.
    """
    rules = flow_configs.read_retention(root)
    if rules is None:
        example = "{versions: 20, champions: 5, days: 90, snapshots_days: 30}"
        raise UserError(f"{root / 'params.yaml'}: no section retention, so everything is kept; for example {example}")
    with lock_checkout(root):
        return findings.apply_checks(WASTE, root, rules, mend=delete)


def collect_after_run(root: Path) -> None:
    """Delete like ``collect_garbage``, in a checkout that is held, if a deployment runs this flow; errors become
    warnings."""
    from prefect.logging import get_run_logger
    from prefect.runtime import deployment

    if deployment.get_id() is None:
        return
    log = get_run_logger()
    # The models of the run matter more than disk space: whatever goes wrong here is only reported.
    try:
        if (rules := flow_configs.read_retention(root)) is None:
            return
        report = findings.apply_checks(WASTE, root, rules, mend=True)
    except Exception as error:  # noqa: BLE001 whatever it is, the run has done its work
        log.warning("nothing was cleaned up: %s", " ".join(str(error).split()))
        return
    for name, why in report.unseen.items():
        log.warning("not cleaned up: %s: %s", name, why)
    if report.mended:
        log.info("cleaned up: %s", "; ".join(finding.where for finding in report.mended))
