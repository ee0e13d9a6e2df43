"""Stage clean: the documents of all sources in one order, without text that breaks a rule; removed text is kept."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from plm_core.config import UserError
from plm_core.corpus.account import COUNTS, KEPT, REMOVED
from plm_core.corpus.clean import CleanConfig, clean_part, counted
from plm_core.corpus.language import require_known
from plm_core.corpus.parts import gather, parts_of
from plm_core.shared import paths
from tasks.runtime.pools import pool
from tasks.runtime.stage import main, stage
from tasks.settings import params

REMOVALS = paths.REMOVED / "clean.parquet"


def clean() -> None:
    """Read section ``clean`` and the names of the sources, write the clean corpus and what was removed, count both."""
    config = params.section("clean", CleanConfig)
    if config.languages is not None:
        require_known(config.languages)
    with stage("clean", ["clean", "sources"], [paths.RAW]) as run:
        with pool(run, config) as workers:
            results = workers.map("clean", clean_part, [(part, config) for part in parts_of(_sources())])
            gather([result / REMOVED for result in results], REMOVALS)
            counts = _sum(results)
            total = sum(counts.values(), Counter())
            _require_some(total)
            gather([result / KEPT for result in results], paths.CLEAN)
        run.metrics |= _metrics(total, counts, config)
        run.outputs += [paths.CLEAN, REMOVALS]
        print(
            f"documents: {total['kept_documents']} of {total['read_documents']}, "
            f"paragraphs: {total['kept_paragraphs']} of {total['read_paragraphs']}; removed: {_removed(total)}"
        )


def _sources() -> list[Path]:
    """The files of the sources in the parameters; those of former sources are not read."""
    expected = sorted(paths.RAW / f"{name}.parquet" for name in params.section_names("sources"))
    for other in sorted(set(paths.RAW.glob("*.parquet")) - set(expected)):
        print(f"{other}: belongs to no source in the parameters (sources); not read")
    return expected


def _sum(results: list[Path]) -> dict[str, Counter[str]]:
    """The counts of all parts by source."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for source, found in json.loads((result / COUNTS).read_bytes()).items():
            counts.setdefault(source, Counter()).update(found)
    return counts


def _metrics(total: Counter[str], counts: Mapping[str, Counter[str]], config: CleanConfig) -> dict[str, int]:
    """All counts, including zeros; then those of each source that are not zero, as ``<source>/<name>``."""
    names = counted(config) + sorted(name for name in total if name.startswith("language_"))
    metrics = {name: total[name] for name in names}
    for source in sorted(counts):
        metrics |= {f"{source}/{name}": counts[source][name] for name in names if counts[source][name]}
    return metrics


def _removed(total: Counter[str]) -> dict[str, int]:
    rules = [name for name in sorted(total) if name.startswith("removed_") and name.count("_") > 1]
    return {name.removeprefix("removed_"): total[name] for name in rules}


def _require_some(total: Counter[str]) -> None:
    """Raise UserError if no document is left; the removals are already written, for people to inspect."""
    if not total["kept_documents"]:
        raise UserError(
            f"clean: none of {total['read_documents']} documents is left (removed: {_removed(total)}; see {REMOVALS}); "
            "expected at least one: loosen the rules"
        )


if __name__ == "__main__":
    main(clean)
