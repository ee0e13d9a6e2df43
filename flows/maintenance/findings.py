"""What is wrong, or not needed, in a checkout and its stores: one list for ``plm doctor`` and ``plm gc``."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plm_core.shared.errors import UserError


@dataclass(frozen=True)
class Finding:
    """A problem, or something that the retention rules do not keep."""

    what: str
    """What is wrong; for something to delete, the rule that does not keep it."""
    where: str
    mend: str
    """How to fix it, in one line."""
    safe: Callable[[], object] | None = field(default=None, compare=False)
    """Fixes it, or deletes it; None if that could lose a result, a version, a decision or a point of a curve. Being
    killed in the middle does no harm: the next call continues."""
    bytes: int | None = None
    """How much deleting it frees; None if unknown."""


def unneeded(what: str, why: str, size: int | None, delete: Callable[[], object]) -> Finding:
    """Something that the retention rules do not keep."""
    return Finding(why, what, "`plm gc` deletes it", delete, size)


Found = Generator[Finding | str, None, None]
"""Findings, and notes on what is in order but worth knowing."""
Check = Callable[[Path, Any], Found]
"""Looks at the checkout ``root``: for problems, reading the bytes of everything if the second argument is True; or for
what the retention rules given as the second argument do not keep. A UserError or OSError means that it could not."""


@dataclass(frozen=True)
class Report:
    """What the checks have found."""

    findings: list[Finding] = field(default_factory=list)
    mended: list[Finding] = field(default_factory=list)
    """What was fixed, or deleted."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Why something could not be checked or fixed, by its name."""
    notes: list[str] = field(default_factory=list)


def apply_checks(checks: Mapping[str, Check], root: Path, given: object, mend: bool = False) -> Report:
    """Run the checks, and fix each finding as soon as it is found, if that is safe and ``mend`` is set.

    If one is cut short by an error, what it found before still counts, and the others are run.
    """
    report = Report()
    # An unreachable store must not hide problems elsewhere.
    for name, check in checks.items():
        try:
            for finding in (findings := check(root, given)):
                if isinstance(finding, str):
                    report.notes.append(finding)
                elif mend and finding.safe:
                    # At once, while the check holds what it has opened.
                    try:
                        finding.safe()
                        report.mended.append(finding)
                    except (UserError, OSError) as error:
                        report.unseen[finding.where] = " ".join(str(error).split())
                    except Exception as error:  # noqa: BLE001 the check knows the errors of the store that it has open
                        findings.throw(error)
                else:
                    report.findings.append(finding)
        except (UserError, OSError) as error:
            report.unseen[name] = " ".join(str(error).split())
    return report
