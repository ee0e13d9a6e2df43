"""Stage ingest: a source's documents as one Parquet file, in the order of their ids."""

from pathlib import Path

from plm_core.corpus.document import Document, write_documents
from plm_core.corpus.sources import IngestConfig, open_source
from tasks.seam import params, paths
from tasks.seam.stage import main, stage


def ingest() -> None:
    """Read section ``ingest``, write the raw corpus."""
    config = params.section("ingest", IngestConfig)
    with stage("ingest", ["ingest"], [Path(config.input)], paths.METRICS / "ingest.json") as run:
        documents = sorted((Document(**row) for row in open_source(config)), key=lambda d: d.id)
        run.metrics["documents"] = write_documents(paths.RAW, documents)
        run.metrics["bytes"] = sum(len(d.text.encode()) for d in documents)
        run.outputs.append(paths.RAW)
        print(f"{config.source}: {run.metrics['documents']} documents, {run.metrics['bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main(ingest)
