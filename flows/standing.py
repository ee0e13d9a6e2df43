"""The state of the models: the registry's versions as plain data and as tables. For ``plm status`` and ``plm run``.

Importing MLflow takes longer than everything else in ``plm status``, so its answer is cached next to a SQLite store,
and read from there until the store changes.
"""

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import settings
from plm_core.shared.stores import shown

if TYPE_CHECKING:
    from flows.registry import Registry

NEWEST = 3
"""How many of the newest versions the tables show, in addition to those with an alias."""


def registry_status(root: Path) -> dict[str, Any]:
    """The registered model and its versions, the newest first, as plain data.

    Raises:
        UserError: ``params.yaml`` cannot be used.
        RegistrationFailed: MLflow cannot be reached or fails.
    """
    tracking, promotion = settings.read(root)
    if not tracking.uri.startswith("sqlite:///"):
        return from_mlflow(root)
    database = Path(tracking.uri.removeprefix("sqlite:///"))
    cache = database.with_name(f"{database.name}.status.json")
    key = _key(database, tracking.experiment, promotion.registered_model)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(cache.read_text(encoding="utf-8"))
        if found["key"] == key:
            return dict(found["status"])
    status = from_mlflow(root)
    if key == _key(database, tracking.experiment, promotion.registered_model):  # and not if it changed in between
        new = cache.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):  # with a full disk, the next call only takes longer
            new.write_text(json.dumps({"key": key, "status": status}), encoding="utf-8")
            new.replace(cache)
        new.unlink(missing_ok=True)
    return status


def _key(database: Path, *names: str) -> list[Any]:
    """Changes with the store, which may have a write-ahead log, with what is asked of it, and with this program."""
    key: list[Any] = [*names, str(database)]
    for path in (database, database.with_name(f"{database.name}-wal"), Path(__file__)):
        with contextlib.suppress(FileNotFoundError):
            about = path.stat()
            key += [about.st_size, about.st_mtime_ns]
    return key


def from_mlflow(root: Path) -> dict[str, Any]:
    """As ``registry_status``, without the cache."""
    from flows.ledger import TABLE_TAG
    from flows.registry import DIGEST_TAG, opened

    with opened(root) as registry:
        metrics = registry.metrics()
        versions = [
            {
                "version": version.number,
                "aliases": version.aliases,
                "gate": version.tags.get("gate"),
                "reasons": version.tags.get("gate.reasons"),
                "compared": json.loads(version.tags.get(TABLE_TAG, "null")),
                "checkpoint_sha256": version.tags.get(DIGEST_TAG),
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
        notice, unsettled = _notice(registry)
        return {
            "model": registry.name,
            "tracking_uri": shown(registry.tracking.uri),
            "versions": versions,
            "notice": notice,
            "unsettled": unsettled,
        }


def _notice(registry: "Registry") -> tuple[str | None, bool]:
    """What is odd about the champion, and whether the next command that decides something resolves it."""
    from flows.registry import CHAMPION
    from flows.transaction import disagreement

    if registry.ledger.unfinished():
        return "a decision was interrupted; the next `plm run` completes or discards it", True
    odd = disagreement(registry)
    return odd and "; ".join(odd), bool(odd and registry.alias(CHAMPION))


def show(console: Any, registry: Mapping[str, Any], every: bool = False) -> None:
    """Print what the gate compared for the newest versions and the champion; with ``every`` also their metrics."""
    from rich.table import Table

    versions = registry["versions"]
    shown = [v for i, v in enumerate(versions) if v["aliases"] or i < NEWEST]
    table = Table(
        *("version", "against", "metric", "champion", "challenger", "difference", "tolerance", "examples", "verdict"),
        title=f"What the gate compared for the model {registry['model']}",
    )
    for version in shown:
        for row in _compared(version):
            table.add_row(version["version"], *row)
    if table.row_count:
        console.print(table)
    if every:
        console.print(_metrics(shown))
    for version in reversed(shown):
        for note, metrics in _left_out(version).items():
            console.print(f"version {version['version']}: {', '.join(metrics)} not compared: {note}")
    for version in reversed(shown):
        first = "champion" in version["aliases"]
        names = " (champion)" if first else "".join(f" ({alias})" for alias in version["aliases"])
        by_hand = "made the champion by hand after it was " if first and version["gate"] == "refused" else ""
        verdict = f"{by_hand}{version['gate'] or 'not judged yet'}. {version['reasons'] or ''}".rstrip()
        console.print(f"version {version['version']}{names}, {version['stage']}: {verdict}")
    if registry["notice"]:
        console.print(f"[yellow]warning[/yellow]        {registry['notice']}")
    champion = next((v["version"] for v in versions if "champion" in v["aliases"]), None)
    name = f"{registry['model']} version {champion}" if champion else "none yet"
    console.print(f"champion       [bold]{name}[/bold]")


def _metrics(versions: Sequence[Mapping[str, Any]]) -> Any:
    """A table with a row per metric and a column per version."""
    from rich.table import Table

    table = Table("metric", *(f"version {version['version']}" for version in versions), title="Metrics")
    for name in sorted({name for version in versions for name in version["metrics"]}):
        values = [version["metrics"].get(name) for version in versions]
        table.add_row(name, *("" if value is None else f"{value:,.4f}" for value in values))
    return table


def _compared(version: Mapping[str, Any]) -> list[list[str]]:
    """A row per metric that both sides have, or that the first model has."""
    found = version["compared"] or {"table": []}
    return [
        [
            row.get("earlier") or found["champion"] or "",
            row["metric"],
            *("" if row[side] is None else f"{row[side]:.4f}" for side in ("champion", "challenger")),
            "" if row["difference"] is None else f"{row['difference']:+.4f}",
            f"{row['tolerance']:g}",
            f"{row['examples']:,}{f' in {groups:,} groups' * (groups < row['examples'])}" if row["examples"] else "",
            row["verdict"],
        ]
        for row in found["table"]
        if row.get("difference") is not None or row["verdict"] == "no champion"
        for groups in [row.get("groups") or row["examples"]]
    ]


def _left_out(version: Mapping[str, Any]) -> dict[str, list[str]]:
    """The metrics that were not compared, by reason."""
    found: dict[str, list[str]] = {}
    compared = version["compared"] or {"champion": None, "table": []}
    for row in compared["table"] if compared["champion"] else []:
        known = {row.get("champion", 0), row.get("challenger")} != {None}  # None: a likelihood that neither has
        if row.get("difference") is None and known:
            found.setdefault(row["note"] or row["verdict"], []).append(row["metric"])
    return found
