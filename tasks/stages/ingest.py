"""Stage ingest: a source's documents as one table, sorted by id; unusable records are kept apart.

``python -m tasks.stages.ingest NAME`` reads the source that is the section NAME of ``sources``.
"""

import json
from collections import Counter
from pathlib import Path

from plm_core.config import UserError, choose
from plm_core.corpus.document import gather_parts, parts_of
from plm_core.corpus.parallel_reading import COUNTS, DOCUMENTS, join_part, read_part, refused
from plm_core.corpus.removals import Quarantined, quarantine_writer
from plm_core.corpus.sources import SOURCES
from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage
from tasks.runtime.worker_pool import pool


def ingest(name: str) -> None:
    """Read the source ``sources.NAME`` of params.yaml; write its documents and what was quarantined."""
    section = f"sources.{name}"
    stage_parameters.section_names("sources")
    given = stage_parameters.read(section)
    source = choose(SOURCES, "reader", given, section)
    documents, rejected = paths.RAW / f"{name}.parquet", paths.QUARANTINED / f"{name}.jsonl"
    origin = paths.ORIGINS / f"{name}.json"
    with stage(f"ingest-{name}", [section], [Path(source.input)]) as run, pool(run, given) as workers:
        # Not kept: ids depend on the names of files, which the content of a part does not tell.
        read = workers.map("read", read_part, [(name, part) for part in source.parts()])
        parts = parts_of((result / DOCUMENTS for result in read), unique=False)
        joined = workers.map("join", join_part, [(name, part) for part in parts], keep=True)
        counts = sum((Counter[str](json.loads((result / COUNTS).read_bytes())) for result in joined), Counter[str]())
        count, size = counts["documents"], counts["bytes"]

        # The quarantine is written before anything is refused, so that people can look at what was wrong.
        reasons, lost = Counter[str](), Counter[Quarantined]()
        first: dict[str, Quarantined] = {}
        with quarantine_writer(rejected) as refuse:
            for record in refused([*read, *joined]):
                refuse(record)
                reasons[record.reason] += 1
                first.setdefault(record.reason, record)
                if record.lost_bytes:
                    lost[record] = record.lost_bytes
        bad = reasons.total()

        # A source is refused if a file is only a pointer (Git LFS), if many bytes are not read (however few records
        # they amount to), if many records are bad, or if nothing is left.
        share = f"expected a share of at most {source.max_quarantined} (sources.{name}.max_quarantined)"
        if pointer := first.get("lfs_pointer"):
            raise UserError(f"{pointer.place}: {pointer.detail} (the first of {reasons['lfs_pointer']} such files)")
        if (missing := lost.total()) > source.max_quarantined * (size + missing):
            [(worst, most)] = lost.most_common(1)
            raise UserError(
                f"{worst.place}: {worst.reason} ({worst.detail}); {most:,} bytes of the file are not read, in all "
                f"{missing / (size + missing):.2%} of the source; {share}: repair or replace the file, or take it "
                f"out of {source.input}"
            )
        if bad and bad >= source.min_quarantined and bad > source.max_quarantined * (count + bad):
            record = next(iter(first.values()))
            raise UserError(
                f"{record.place}: {record.reason} ({record.detail}), the first of {bad} quarantined records of "
                f"{count + bad} ({bad / (count + bad):.2%}; see {rejected}); {share}, or fewer than "
                f"{source.min_quarantined} (sources.{name}.min_quarantined)"
            )
        if not count:
            raise UserError(f"{source.input}: no documents in it; expected at least one text (sources.{name}.input)")

        gather_parts([result / DOCUMENTS for result in joined], documents)
        totals = {"records": count + bad, "documents": count, "bytes": size}
        description = {"reader": given["reader"]} | source.origin() | totals
        atomic_text(origin, json.dumps(description, indent=2, ensure_ascii=False) + "\n")
        run.metrics |= {"records_read": count + bad, "documents": count, "bytes": size, "quarantined": bad}
        run.metrics |= {f"quarantined_{reason}": reasons[reason] for reason in sorted(reasons)}
        run.outputs += [documents, rejected, origin]
        kept = f"{dict(sorted(reasons.items()))} (see {rejected})" if bad else "none"
        print(f"{name}: {count} documents, {size / 1e6:.1f} MB; quarantined: {kept}")


if __name__ == "__main__":
    main(ingest)
