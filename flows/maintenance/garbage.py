"""``plm gc``, and the last step of a scheduled run: delete what the section ``retention`` does not keep.

The functions ``old_...`` of the ``*_checks`` modules decide what that is, for one store each.
"""

from pathlib import Path

from flows import flow_configs
from flows.maintenance import checkout_checks, findings, output_checks, prefect_checks, registry_checks
from flows.run.checkout import lock_checkout
from plm_core.shared.errors import UserError

GARBAGE: dict[str, findings.Check] = {
    "registry": registry_checks.old_versions,
    "cache": output_checks.old_objects,
    "files": checkout_checks.old_files,
    "compiled": checkout_checks.old_compiled,
    "Prefect": prefect_checks.old_runs,
}
"""Each finds what is not kept."""


def collect(root: Path, delete: bool) -> findings.Report:
    """Find what is not kept, and delete it if ``delete`` is set, while no pipeline runs in the checkout.

    Raises:
        UserError: ``params.yaml`` has no section ``retention`` or a wrong one, or a pipeline runs.
    """
    rules = flow_configs.read_retention(root)
    if rules is None:
        example = "{versions: 20, champions: 5, days: 90, snapshots_days: 30}"
        raise UserError(f"{root / 'params.yaml'}: no section retention, so everything is kept; for example {example}")
    with lock_checkout(root):
        return findings.apply_checks(GARBAGE, root, rules, mend=delete)


def collect_after_run(root: Path) -> None:
    """Delete like ``collect``, in a checkout that is held, if a deployment runs this flow; errors become
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
        report = findings.apply_checks(GARBAGE, root, rules, mend=True)
    except Exception as error:  # noqa: BLE001 whatever it is, the run has done its work
        log.warning("nothing was cleaned up: %s", " ".join(str(error).split()))
        return
    for name, why in report.unseen.items():
        log.warning("not cleaned up: %s: %s", name, why)
    if report.mended:
        log.info("cleaned up: %s", "; ".join(finding.where for finding in report.mended))
