"""Outputs and DVC's cache: whether they match ``dvc.lock`` and the names of the objects."""

from functools import partial
from pathlib import Path

from flows import cache
from flows.checkout import LOCK, HeldError, only_one
from flows.health.finding import Finding, Found, Note, waste
from flows.nights import Nights, moment
from flows.settings import Retention

WORDS = {"modified": "is not what dvc.lock records", "deleted": "is missing", "not in cache": "is not in DVC's cache"}


def outputs(root: Path, _everything: bool) -> Found:
    """Outputs that differ from what ``dvc.lock`` records; none if a pipeline runs before they are compared.

    The checkout is not held in the meantime: this takes minutes, and a run that is due would be skipped.
    """
    try:
        with only_one(root):
            last = Nights.read(root)
            ours = (root / LOCK).read_text()
    except HeldError as error:
        yield Note(f"outputs: not compared with dvc.lock: {error}")
        return
    if killed := None if last.ended else last.begun:
        yield Finding(
            f"the last run, of {moment(killed)}, was killed", "outputs", "`plm run` settles this and the rest"
        )
    found = cache.differing(root)
    if (root / LOCK).read_text() != ours:
        yield Note("outputs: not compared with dvc.lock, because a run or another command has started; try again")
        return
    kept = [output for output in found if output.cached]
    if kept and not any((root / output.path).exists() for output in kept) and cache.empty(root):
        yield Note("outputs: nothing that dvc.lock records is here yet; run `dvc pull` or `plm run`")
        found = [output for output in found if not output.cached]
    for output in found:
        what = f"the output {WORDS.get(output.state, output.state)}"
        if output.state == "deleted" and output.cached and not killed:  # a stage deletes its outputs before it runs
            mend = f"`dvc checkout {output.path}` restores it"
            yield Finding(what, output.path, mend, partial(cache.restore, root, output.path))
        elif output.state == "modified" and output.cached:
            mend = f"`dvc checkout --force {output.path}` restores the recorded one, `plm run` rebuilds it"
            yield Finding(what, output.path, mend)
        else:
            yield Finding(what, output.path, f"`plm run` rebuilds it, in stage {output.stage}")


def cached(root: Path, everything: bool) -> Found:
    """Objects of the cache whose bytes do not match their names."""
    for path in cache.damaged(root) if everything else []:
        mend = "delete this file: `dvc pull` gets the object from a remote, `plm run` rebuilds it"
        yield Finding("a cached object is damaged", path.relative_to(root).as_posix(), mend)


def old_objects(root: Path, rules: Retention) -> Found:
    """Objects in DVC's cache that nothing needs, and in its remote if the rules say so."""
    for found in cache.unused(root, rules.days, rules.remote):
        why = f"older than {rules.days} days, and needed by no dvc.lock of that time"
        yield waste(f"{len(found.names):,} files of {found.where}", why, found.bytes, found.delete)
