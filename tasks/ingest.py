"""Stage ingest: a source's documents as one table, sorted by id; unusable records are kept apart.

``python -m tasks.ingest NAME`` reads the source that is the section NAME of ``sources``.
"""

import json
from collections import Counter
from pathlib import Path

from plm_core.config import UserError, choose
from plm_core.corpus.document import parts_of
from plm_core.corpus.ingest import COUNTS, DOCUMENTS, join_part, read_part, refused
from plm_core.corpus.quarantine import Quarantined, quarantine_writer
from plm_core.corpus.sources import SOURCES
from plm_core.corpus.sources.source import Source
from plm_core.corpus.tables import gather
from plm_core.files import atomic_text
from plm_core.shared import paths
from tasks.runtime.pools import pool
from tasks.runtime.stage import main, stage
from tasks.settings import params


def ingest(name: str) -> None:
    """Read the source ``sources.NAME`` of params.yaml, write its documents and what was quarantined."""
    section = f"sources.{name}"
    params.section_names("sources")
    given = params.read(section)
    source = choose(SOURCES, "reader", given, section)
    documents, rejected = paths.RAW / f"{name}.parquet", paths.QUARANTINED / f"{name}.jsonl"
    origin = paths.ORIGINS / f"{name}.json"
    with stage(f"ingest-{name}", [section], [Path(source.input)]) as run, pool(run, given) as workers:
        read = workers.map("read", read_part, [(name, part) for part in source.parts()])
        parts = parts_of((result / DOCUMENTS for result in read), unique=False)
        joined = workers.map("join", join_part, [(name, part) for part in parts])
        counts = sum((Counter[str](json.loads((result / COUNTS).read_bytes())) for result in joined), Counter[str]())
        reasons, lost = Counter[str](), Counter[Quarantined]()
        first: dict[str, Quarantined] = {}
        # The quarantine is written before anything is refused, so that people can look at what was wrong.
        with quarantine_writer(rejected) as refuse:
            for record in refused([*read, *joined]):
                refuse(record)
                reasons[record.reason] += 1
                first.setdefault(record.reason, record)
                if record.lost_bytes:
                    lost[record] = record.lost_bytes
        bad = reasons.total()
        count, size = counts["documents"], counts["bytes"]
        if pointer := first.get("lfs_pointer"):
            raise UserError(f"{pointer.place}: {pointer.detail} (the first of {reasons['lfs_pointer']} such files)")
        _require_bytes(name, source, lost, size)
        _require_enough(name, source, next(iter(first.values()), None), bad, count + bad)
        gather([result / DOCUMENTS for result in joined], documents)
        found = {"records": count + bad, "documents": count, "bytes": size}
        known = {"reader": given["reader"]} | source.origin() | found
        atomic_text(origin, json.dumps(known, indent=2, ensure_ascii=False) + "\n")
        run.metrics |= {"records_read": count + bad, "documents": count, "bytes": size, "quarantined": bad}
        run.metrics |= {f"quarantined_{reason}": reasons[reason] for reason in sorted(reasons)}
        run.outputs += [documents, rejected, origin]
        kept = f"{dict(sorted(reasons.items()))} (see {rejected})" if bad else "none"
        print(f"{name}: {count} documents, {size / 1e6:.1f} MB; quarantined: {kept}")


def _require_bytes(name: str, source: Source, lost: Counter[Quarantined], read: int) -> None:
    """Refuse a source of which too many bytes are not read, however few records stand for them."""
    if (missing := lost.total()) > source.max_quarantined * (read + missing):
        [(worst, size)] = lost.most_common(1)
        raise UserError(
            f"{worst.place}: {worst.reason} ({worst.detail}); {size:,} bytes of the file are not read, in all "
            f"{missing / (read + missing):.2%} of the source; expected a share of at most {source.max_quarantined} "
            f"(sources.{name}.max_quarantined): mend or replace the file, or take it out of {source.input}"
        )


def _require_enough(name: str, source: Source, first: Quarantined | None, bad: int, read: int) -> None:
    """Refuse a source without documents, or with too many unusable records."""
    if first and bad >= source.min_quarantined and bad > source.max_quarantined * read:
        raise UserError(
            f"{first.place}: {first.reason} ({first.detail}), the first of {bad} quarantined records of "
            f"{read} ({bad / read:.2%}; see {paths.QUARANTINED}/{name}.jsonl); expected a share of at most "
            f"{source.max_quarantined} (sources.{name}.max_quarantined), or fewer than {source.min_quarantined} "
            f"(sources.{name}.min_quarantined)"
        )
    if read == bad:
        raise UserError(f"{source.input}: no documents in it; expected at least one text (sources.{name}.input)")


if __name__ == "__main__":
    main(ingest)
