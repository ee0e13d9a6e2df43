"""The state of the models: the registry's versions as plain data and as tables. For ``plm status`` and ``plm run``.

Importing MLflow takes longer than everything else in ``plm status``, so its answer is cached next to a SQLite store,
and read from there until the store changes.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows import flow_configs
from plm_core.shared.files import atomic_text
from tasks.tracking.mlflow_stores import SQLITE, without_credentials

NEWEST = 3
"""How many of the newest versions the tables show, in addition to those with an alias."""


def registry_status(root: Path) -> dict[str, Any]:
    """The registered model and its versions, the newest first, as plain data.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    tracking, promotion = flow_configs.read_tracking(root)
    if not tracking.uri.startswith(SQLITE):
        return from_mlflow(root)
    # The cached answer holds while none of these changes: the store and its write-ahead log, this file, the names.
    database = Path(tracking.uri.removeprefix(SQLITE))

    def state() -> list[Any]:
        files = (database, database.with_name(f"{database.name}-wal"), Path(__file__))
        abouts = [path.stat() for path in files if path.exists()]
        names = [tracking.experiment, promotion.registered_model, str(database)]
        return [*names, *([about.st_size, about.st_mtime_ns] for about in abouts)]

    cache = database.with_name(f"{database.name}.status.json")
    before = state()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(cache.read_text(encoding="utf-8"))
        if cached["key"] == before:
            return dict(cached["status"])
    status = from_mlflow(root)
    if before == state():
        with contextlib.suppress(OSError):  # with a full disk, the next call only takes longer
            atomic_text(cache, json.dumps({"key": before, "status": status}))
    return status


def from_mlflow(root: Path) -> dict[str, Any]:
    """Like ``registry_status``, without the cache."""
    from flows.registry.ledger import TABLE_TAG
    from flows.registry.model_registry import CHAMPION, DIGEST_TAG, open_registry

    with open_registry(root) as registry:
        metrics = {run.info.run_id: run.data.metrics for run in registry.runs(f"tags.`{DIGEST_TAG}` != ''")}
        versions = [
            {
                "version": version.number,
                "aliases": version.aliases,
                "gate": version.tags.get("gate"),
                "reasons": version.tags.get("gate.reasons"),
                "compared": json.loads(version.tags.get(TABLE_TAG, "null")),
                "checkpoint_sha256": version.tags.get(DIGEST_TAG),
                "ancestor_sha256": version.tags.get("checkpoint.ancestor"),
                "stage": version.tags.get("dvc.stage"),
                "git_commit": version.tags.get("git.commit"),
                "created": version.created,
                "metrics": {
                    name: value if math.isfinite(value) else None
                    for name, value in sorted(metrics.get(version.run_id, {}).items())
                },
            }
            for version in registry.versions()
        ]
        # What is odd about the champion, and whether the next command that decides something resolves it.
        interrupted = bool(registry.ledger.unfinished())
        odd = registry.disagreement()
        if interrupted:
            odd = ("a decision was interrupted", "the next `plm run` completes or discards it")
        return {
            "model": registry.name,
            "tracking_uri": without_credentials(registry.tracking.uri),
            "versions": versions,
            "notice": odd and "; ".join(odd),
            "unsettled": interrupted or bool(odd and registry.alias(CHAMPION)),
        }


def show(console: Any, registry: Mapping[str, Any], every: bool = False) -> None:
    """Print what the gate compared for the newest versions and the champion; with ``every`` also their metrics."""
    from rich.table import Table

    shown = _shown(registry["versions"])
    table = Table(
        *("version", "against", "metric", "champion", "challenger", "difference", "tolerance", "examples", "verdict"),
        title=f"What the gate compared for the model {registry['model']}",
    )
    left_out: list[str] = []
    for version in shown:
        compared = version["compared"] or {"champion": None, "table": []}
        notes: dict[str, list[str]] = {}
        for row in compared["table"]:
            # A metric that both sides have, or that the first model has.
            if row.get("difference") is not None or row["verdict"] == "no champion":
                groups = row.get("groups") or row["examples"]
                table.add_row(
                    version["version"],
                    row.get("earlier") or compared["champion"] or "",
                    row["metric"],
                    *("" if row[side] is None else f"{row[side]:.4f}" for side in ("champion", "challenger")),
                    "" if row["difference"] is None else f"{row['difference']:+.4f}",
                    f"{row['tolerance']:g}",
                    f"{row['examples']:,}{f' in {groups:,} groups' * (groups < row['examples'])}"
                    if row["examples"]
                    else "",
                    row["verdict"],
                )
            # A metric that one side lacks; a likelihood that neither has is not mentioned.
            elif compared["champion"] and {row.get("champion", 0), row.get("challenger")} != {None}:
                notes.setdefault(row["note"] or row["verdict"], []).append(row["metric"])
        lines = (f"{', '.join(metrics)} not compared: {note}" for note, metrics in notes.items())
        left_out = [*(f"version {version['version']}: {line}" for line in lines), *left_out]
    if table.row_count:
        console.print(table)
    if every:
        metrics = Table("metric", *(f"version {version['version']}" for version in shown), title="Metrics")
        for name in sorted({name for version in shown for name in version["metrics"]}):
            values = [version["metrics"].get(name) for version in shown]
            metrics.add_row(name, *("" if value is None else f"{value:,.4f}" for value in values))
        console.print(metrics)
    for line in left_out:
        console.print(line)
    for line in sentences(registry):
        console.print(line)


def sentences(registry: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on each of the newest versions and on the champion, in rich's markup."""
    versions = registry["versions"]
    by_digest = {d: version for version in versions if (d := version.get("checkpoint_sha256"))}
    for version in reversed(_shown(versions)):
        chain: list[str] = []
        digest = version.get("ancestor_sha256")
        while digest in by_digest:
            chain.append(by_digest[digest]["version"])
            digest = by_digest[digest].get("ancestor_sha256")
        carried = f", carried on from version {' from '.join(chain)}" if chain else ""
        first = "champion" in version["aliases"]
        names = " (champion)" if first else "".join(f" ({alias})" for alias in version["aliases"])
        by_hand = "made the champion by hand after it was " if first and version["gate"] == "refused" else ""
        verdict = f"{by_hand}{version['gate'] or 'not judged yet'}. {version['reasons'] or ''}".rstrip()
        yield f"version {version['version']}{names}, {version['stage']}{carried}: {verdict}"
    if registry["notice"]:
        yield f"[yellow]warning[/yellow]        {registry['notice']}"
    champion = next((v["version"] for v in versions if "champion" in v["aliases"]), None)
    name = f"{registry['model']} version {champion}" if champion else "none yet"
    yield f"champion       [bold]{name}[/bold]"


def _shown(versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [version for i, version in enumerate(versions) if version["aliases"] or i < NEWEST]
