"""``plm doctor``: compares the stores with each other, and fixes what can be fixed without losing anything.

The checks are in ``flows/health``. If one store is unreachable, the others are still checked.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.health.finding import Check, Finding, Note
from flows.health.local import disk, journals, locks, snapshots
from flows.health.outputs import cached, outputs
from flows.health.registry import registry
from flows.health.schedule import schedule
from flows.outcome import UserError

CHECKS: Mapping[str, Check] = {
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


@dataclass(frozen=True)
class Report:
    """What the checks of a checkout have found."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    """Why a check could not be made, by its name."""
    mended: list[Finding] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status."""
        return WRONG if self.findings else UNSEEN if self.unseen else WELL

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "findings": [_plain(finding) for finding in self.findings],
            "mended": [_plain(finding) for finding in self.mended],
            "unseen": self.unseen,
            "notes": self.notes,
        }


def look(root: Path, everything: bool = False, checks: Mapping[str, Check] = CHECKS) -> Report:
    """Run every check; if one is cut short by an error, what it found before still counts."""
    report = Report()
    for name, check in checks.items():
        try:
            for said in check(root, everything):
                if isinstance(said, Note):
                    report.notes.append(said.text)
                else:
                    report.findings.append(said)
        except (UserError, OSError) as error:
            report.unseen[name] = " ".join(str(error).split())
    return report


def mend(root: Path, everything: bool = False, checks: Mapping[str, Check] = CHECKS) -> Report:
    """Check, fix what is safe to fix, and check again; what could not be fixed is still reported."""
    before = look(root, everything, checks)
    tried = [finding for finding in before.findings if finding.safe]
    for finding in tried:
        assert finding.safe
        with contextlib.suppress(UserError, OSError):  # the second look finds it again
            finding.safe()
    if not tried:
        return before
    after = look(root, everything, checks)
    mended = [finding for finding in tried if finding not in after.findings]
    return Report(after.findings, after.notes, after.unseen, mended)


def lines(report: Report) -> Iterator[str]:
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
    if report.status == WELL:
        yield "all is well"


def _plain(finding: Finding) -> dict[str, Any]:
    return {"what": finding.what, "where": finding.where, "mend": finding.mend, "safe": finding.safe is not None}
