"""Stage clean: the documents of all sources in one order, without text that breaks a rule; removed text is kept."""

import re

from plm_core.config import UserError
from plm_core.corpus.cleaning import CleanConfig, clean_part, count_names
from plm_core.corpus.document import gather_parts, parts_of
from plm_core.corpus.language import require_known
from plm_core.corpus.removals import KEPT, REMOVED, counts_of
from plm_core.shared import paths
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage
from tasks.runtime.worker_pool import pool

REMOVALS = paths.REMOVED / "clean.parquet"


def clean() -> None:
    """Read section ``clean`` and the names of the sources; write and count the clean corpus and what was removed."""
    config = stage_parameters.section("clean", CleanConfig)
    if config.languages is not None:
        require_known(config.languages)
    with stage("clean", ["clean", "sources"], [paths.RAW]) as run:
        raw = sorted(paths.RAW / f"{name}.parquet" for name in stage_parameters.section_names("sources"))
        for other in sorted(set(paths.RAW.glob("*.parquet")) - set(raw)):
            print(f"{other}: belongs to no source in the parameters (sources); not read")
        with pool(run, config) as workers:
            results = workers.map("clean", clean_part, [(part, config) for part in parts_of(raw)], keep=True)
            # Written before the text is refused, so that people can look at what was removed.
            gather_parts([result / REMOVED for result in results], REMOVALS)
            counts = counts_of(results)
            rules = [name for name in sorted(counts) if re.fullmatch("removed_[a-z]+_[^/]+", name)]
            removed = {name.removeprefix("removed_"): counts[name] for name in rules}
            if not counts["kept_documents"]:
                raise UserError(
                    f"clean: none of {counts['read_documents']} documents is left (removed: {removed}; "
                    f"see {REMOVALS}); expected at least one: loosen the rules"
                )
            gather_parts([result / KEPT for result in results], paths.CLEAN)
        sources = sorted({name.partition("/")[0] for name in counts if "/" in name})
        names = count_names(config) + sorted(name for name in counts if re.fullmatch("language_[a-z]+", name))
        run.metrics |= {name: counts[name] for name in names}
        by_source = [f"{source}/{name}" for source in sources for name in names]
        run.metrics |= {name: counts[name] for name in by_source if counts[name]}
        run.outputs += [paths.CLEAN, REMOVALS]
        print(
            f"documents: {counts['kept_documents']} of {counts['read_documents']}, "
            f"paragraphs: {counts['kept_paragraphs']} of {counts['read_paragraphs']}; removed: {removed}"
        )


if __name__ == "__main__":
    main(clean)
