"""Decisions, aliases and verdicts: whether the ledger and the registry agree. Used by ``flows/health/registry.py``."""

import time
from collections.abc import Callable, Iterator

from flows.health.finding import Finding
from flows.health.versions import Later
from flows.registry import CHAMPION, Registry, Version
from flows.transaction import SETS_IT, alone, disagreement, recover

JUDGED_S = 3600.0
"""A version older than this without a verdict was left by a registration that died."""
VERDICT = ("gate", "gate.reasons")


def check(registry: Registry, later: Later) -> Iterator[Finding]:
    """Decisions that were interrupted, aliases that are not as decided, verdicts that are missing."""
    with alone(registry):  # wait for a decision that is being made
        unfinished = registry.ledger.unfinished()
    for run, decision in unfinished:
        what = str(decision) if decision else "not recorded completely"
        mend = "the next `plm run` completes or discards it"
        yield Finding(f"a decision was interrupted: {what}", f"run {run} of the ledger", mend, later(_recover))
    yield from _aliases(registry, later, settled=not unfinished)
    for version in registry.versions():
        yield from _verdict(registry, version, later)


def _recover(registry: Registry) -> None:
    with alone(registry):
        recover(registry)


def _aliases(registry: Registry, later: Later, settled: bool) -> Iterator[Finding]:
    where = f"the model {registry.name}"
    aliases = registry.aliases()
    for alias, number in aliases.items():
        if registry.exists(number):
            continue
        what = f"the alias {alias} names version {number}, which does not exist"
        if alias == CHAMPION:
            yield Finding(what, where, SETS_IT)
        else:
            yield Finding(what, where, "delete the alias in MLflow", later(_without(alias)))
    named = aliases.get(CHAMPION)
    if settled and (named is None or registry.exists(named)) and (odd := disagreement(registry)):
        what, mend = odd
        yield Finding(what, where, mend)


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
        mend = "set them in MLflow as in the run of the decision in the ledger"
        yield Finding(what, where, mend, later(_tagged(version.number, missing)))
    elif "gate" not in version.tags and CHAMPION not in version.aliases and time.time() - version.created > JUDGED_S:
        promote = f"`plm promote {version.number} --reason ...`"
        mend = f"`plm run` asks the gate if it is one of the current checkpoints; otherwise {promote} does"
        yield Finding("it was never judged", where, mend)


def _tagged(number: str, tags: dict[str, str]) -> Callable[[Registry], object]:
    return lambda registry: registry.tag(number, tags)
