"""Stage ingest: a source's documents as one Parquet file, in the order of their ids; records that are none beside."""

from collections import Counter
from pathlib import Path

from plm_core.config import BadInput
from plm_core.corpus.document import Document, write_documents
from plm_core.corpus.quarantine import Quarantined, write_quarantined
from plm_core.corpus.sources import IngestConfig, open_source
from tasks.seam import params, paths
from tasks.seam.stage import main, stage


def ingest() -> None:
    """Read section ``ingest``, write the raw corpus and what was quarantined."""
    config = params.section("ingest", IngestConfig)
    with stage("ingest", ["ingest"], [Path(config.input)], paths.METRICS / "ingest.json") as run:
        documents: list[Document] = []
        quarantined: list[Quarantined] = []
        read = 0
        for record in open_source(config):
            read += 1
            if isinstance(record, Document):
                documents.append(record)
            else:
                quarantined.append(record)
        # Before anything is refused, so that people can look at what was wrong.
        rejected = write_quarantined(paths.QUARANTINED, quarantined)
        _require_enough(config, read, quarantined)
        documents.sort(key=lambda document: document.id)
        run.metrics |= {"records_read": read, "documents": write_documents(paths.RAW, documents)}
        run.metrics["bytes"] = sum(len(d.text.encode()) for d in documents)
        run.metrics["quarantined"] = rejected
        reasons = Counter(record.reason for record in quarantined)
        run.metrics |= {f"quarantined_{reason}": reasons[reason] for reason in sorted(reasons)}
        run.outputs += [paths.RAW, paths.QUARANTINED]
        sizes = f"{run.metrics['documents']} documents, {run.metrics['bytes'] / 1e6:.1f} MB"
        print(f"{config.source}: {sizes}; records quarantined: {dict(sorted(reasons.items()))}")


def _require_enough(config: IngestConfig, read: int, quarantined: list[Quarantined]) -> None:
    if quarantined and len(quarantined) > config.max_quarantined * read:
        first = quarantined[0]
        raise BadInput(
            f"{first.place}: {first.reason} ({first.detail}), the first of {len(quarantined)} quarantined records of "
            f"{read} ({len(quarantined) / read:.2%}; see {paths.QUARANTINED}); expected a share of at most "
            f"{config.max_quarantined} (ingest.max_quarantined)"
        )
    if read == len(quarantined):
        raise BadInput(
            f"{config.input}: no document in it; expected at least one text for source {config.source!r} (ingest.input)"
        )


if __name__ == "__main__":
    main(ingest)
