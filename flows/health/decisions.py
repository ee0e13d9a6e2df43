"""Decisions, aliases and verdicts: whether the ledger and the registry agree. Used by ``flows/health/registry.py``."""

import time
from collections.abc import Callable, Iterator

from flows.health.finding import Finding
from flows.health.versions import Later
from flows.registry import CHAMPION, Registry, Version
from flows.transaction import alone, settle

JUDGED_S = 3600.0
"""A version that is older than this and has no verdict was left by a registration that died."""
VERDICT = ("gate", "gate.reasons")


def check(registry: Registry, later: Later) -> Iterator[Finding]:
    """Decisions that were interrupted, aliases that are not as decided, verdicts that are missing."""
    with alone(registry):  # who decides at this moment is waited for
        unfinished = registry.ledger.unfinished()
    for run, decision in unfinished:
        what = f"version {decision.version} {decision.action}" if decision else "not written down whole"
        mend = "the next `plm run` carries it through, or takes it back"
        yield Finding(f"a decision was interrupted: {what}", f"run {run} of the ledger", mend, later(_settle))
    yield from _aliases(registry, later, settled=not unfinished)
    for version in registry.versions():
        yield from _verdict(registry, version, later)


def _settle(registry: Registry) -> None:
    with alone(registry):
        settle(registry)


def _aliases(registry: Registry, later: Later, settled: bool) -> Iterator[Finding]:
    where = f"the model {registry.name}"
    sets = "`plm promote VERSION` or `plm rollback` sets it"
    aliases = registry.aliases()
    for alias, number in aliases.items():
        if registry.exists(number):
            continue
        what = f"the alias {alias} names version {number}, which does not exist"
        if alias == CHAMPION:
            yield Finding(what, where, sets)
        else:
            yield Finding(what, where, "delete the alias in MLflow", later(_without(alias)))
    named = aliases.get(CHAMPION)
    champions = registry.ledger.champions()
    known = champions[-1] if champions else None
    if not settled or named == known or (named and not registry.exists(named)):
        return
    if named is None:
        yield Finding(f"no version is the champion, though version {known} was", where, sets)
    else:
        what = f"the alias {CHAMPION} names version {named}, and the ledger knows of {known or 'no champion'}"
        yield Finding(what, where, "somebody has moved it; the next `plm run` asks the gate, and writes it down")


def _without(alias: str) -> Callable[[Registry], object]:
    return lambda registry: registry.delete_alias(alias)


def _verdict(registry: Registry, version: Version, later: Later) -> Iterator[Finding]:
    if all(name in version.tags for name in VERDICT):
        return
    where = f"{registry.name} version {version.number}"
    decided = registry.ledger.tags_of(version.number)
    missing = {name: decided[name] for name in decided if name not in version.tags}
    if missing:
        what = f"tags of its verdict are missing: {', '.join(missing)}"
        mend = "set them in MLflow as the run of the decision in the ledger has them"
        yield Finding(what, where, mend, later(_tagged(version.number, missing)))
    elif "gate" not in version.tags and CHAMPION not in version.aliases and time.time() - version.created > JUDGED_S:
        mend = f"`plm run` asks the gate if it is of today's checkpoints; else `plm promote {version.number}` does"
        yield Finding("it was never judged", where, mend)


def _tagged(number: str, tags: dict[str, str]) -> Callable[[Registry], object]:
    return lambda registry: registry.tag(number, tags)
