"""Transactions on the registry: one decision at a time, carried out completely, against the champion it was made for.

The alias ``champion`` in MLflow says who is champion, because people promote in MLflow's UI too; the ledger is the
history. Used by ``promotion.py`` for everything that moves the alias or gives a verdict.

MLflow's API has neither locks nor compare-and-set. Processes of one machine exclude each other by a lock. If two
machines decide on one server within the same second, the later alias wins: both decisions are in the ledger, and the
next command finds that the ledger and the alias disagree, and says so.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from flows.ledger import Decision
from flows.registry import CHALLENGER, CHAMPION, Registry, Version
from flows.store import RegistryError, unless_gone, warn
from plm_core.shared import gpus
from plm_core.shared.files import locked
from plm_core.shared.stores import SQLITE, shown

WAIT_S = 120.0
"""How long to wait for another process's decision, which takes a second or two."""
PAGE = "decision.html"
"""The artifact of a version's run that holds the full record, because the length of a description is limited."""
LIMIT = 5_000
"""Characters of a description that every database of MLflow keeps."""
SETS_IT = "`plm promote VERSION --reason ...` or `plm rollback --reason ...` sets it"
"""What to do if the alias ``champion`` names nothing."""


class StaleError(Exception):
    """The champion is not the one that the decision was made against."""


def commit(registry: Registry, decision: Decision, expected_champion: str | None) -> None:
    """Record a decision in the ledger and carry it out, if the alias still names the champion it was made against.

    Args:
        registry: Where.
        decision: What.
        expected_champion: The number that the alias ``champion`` named then; None for none.

    Raises:
        StaleError: the alias names another version now. Nothing was done.
        RegistryError: another process holds the registry and does not let go.
    """
    with alone(registry):
        recover(registry)
        if registry.alias(CHAMPION) != expected_champion:
            raise StaleError
        run = registry.ledger.begin(decision)
        _carry_out(registry, decision)
        registry.ledger.end(run, carried_out=True)


def recover(registry: Registry) -> list[Decision]:
    """Complete the decisions that a dead process had begun, or discard them; the caller is ``alone``.

    A decision is discarded if it was not recorded completely, its version is gone, or a person has moved the alias.

    Returns:
        What was completed.
    """
    done: list[Decision] = []
    for run, decision in registry.ledger.unfinished():
        what = f"{registry.name}: a decision that was interrupted"
        alias = registry.alias(CHAMPION) or ""
        possible = decision and registry.exists(decision.version)
        if decision and possible and (not decision.moves or alias in (decision.version, decision.previous)):
            _carry_out(registry, decision)
            registry.ledger.end(run, carried_out=True)
            warn(f"{what} has been completed: {decision}")
            done.append(decision)
        else:
            registry.ledger.end(run, carried_out=False)
            warn(f"{what} has been discarded" + (f": {decision}" if decision else ""))
    return done


def disagreement(registry: Registry) -> tuple[str, str] | None:
    """How the alias ``champion`` and the ledger disagree, and what fixes that; None if they agree."""
    alias = registry.alias(CHAMPION)
    champions = registry.ledger.champions()
    known = champions[-1] if champions else None
    if alias == known:
        return None
    if alias is None:
        return f"no version is the champion, although version {known} was", SETS_IT
    what = f"somebody has made version {alias} the champion, but the ledger has {known or 'none'}"
    return what, "the next `plm run` asks the gate about it, and records it"


def _carry_out(registry: Registry, decision: Decision) -> None:
    """Move the alias, then describe and tag the version; idempotent.

    Verdicts are tagged last: if a process dies in between, a version without one is judged again.
    """
    if decision.moves:
        registry.set_alias(CHAMPION, decision.version)
        if registry.alias(CHALLENGER) == decision.version:
            registry.delete_alias(CHALLENGER)
    if decision.gate:
        describe(registry, registry.get(decision.version), decision)
    registry.tag(decision.version, decision.tags)


def describe(registry: Registry, version: Version, decision: Decision) -> None:
    """Show the decision on the pages of a version and its run; without a record, the gate was not asked."""
    details = decision.details or {}
    known = registry.client.get_model_version(registry.name, version.number).description or ""
    text = details.get("description") or (known.partition("\n\n")[2] if known.startswith("Overruled") else known)
    if decision.gate == "overruled":
        text = f"Overruled, {decision.action}: {' '.join(decision.reasons[0].split())}\n\n{text}"[:LIMIT]
    if text != known:
        registry.client.update_model_version(registry.name, version.number, text)
    with unless_gone():
        registry.client.set_tag(version.run_id, "gate", decision.gate)
        if "page" in details:
            registry.client.log_text(version.run_id, details["page"], PAGE)


@contextlib.contextmanager
def alone(registry: Registry) -> Iterator[None]:
    """Hold the registry's lock on this machine.

    Raises:
        RegistryError: another process holds it and does not let go.
    """
    uri = registry.tracking.uri
    name = f"plm registry {hashlib.sha256(shown(uri).encode()).hexdigest()[:16]}"
    beside = uri.startswith(SQLITE)
    # For a server it is a name in Linux's kernel: a file in /tmp belongs to its first user (plm_core/shared/gpus.py).
    path = Path(f"{uri.removeprefix(SQLITE)}.decisions.lock")
    deadline = time.monotonic() + WAIT_S
    with contextlib.ExitStack() as held:
        while True:
            with contextlib.suppress(BlockingIOError):
                if lock := locked(path, wait=False) if beside else gpus.bind(name):
                    held.enter_context(lock)
                    break
            if time.monotonic() > deadline:
                who = f"`fuser '{path}'` names it" if beside else f"it is {gpus.holder(name) or 'this one'}"
                raise RegistryError(f"{registry.name}: another process has held the registry for {WAIT_S:.0f} s; {who}")
            time.sleep(0.1)
        yield
