"""``plm doctor``: compares what the stores say of each other, and mends what can be mended without losing anything.

The checks are in ``flows/health``. A store that is away keeps nobody from looking at the rest.
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
"""Exit statuses: all is well; something is wrong; nothing is known to be, but not everything could be looked at."""


@dataclass(frozen=True)
class Report:
    """What a look at a checkout has shown."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    """Why a check could not look, by its name."""
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
    """Let every check look; what one has found before it could look no further counts."""
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
    """Look, mend what is safe to mend, and look again; what does not let itself be mended is still found."""
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
    """What is printed for people."""
    for finding in report.mended:
        yield f"mended         {finding.where}: {finding.what}"
    for finding in report.findings:
        yield f"wrong          {finding.where}: {finding.what}"
        yield f"               mend: {finding.mend}{' (--mend does it)' if finding.safe else ''}"
    for name, why in report.unseen.items():
        yield f"not looked at  {name}: {why}"
    for note in report.notes:
        yield f"               {note}"
    if report.status == WELL:
        yield "all is well"


def _plain(finding: Finding) -> dict[str, Any]:
    return {"what": finding.what, "where": finding.where, "mend": finding.mend, "safe": finding.safe is not None}
