"""Stage clean: paragraphs in normal form, without duplicates, and documents split; what is removed is kept beside."""

from collections import Counter

from plm_core.config import BadInput
from plm_core.corpus.clean import CleanConfig, Removal, clean
from plm_core.corpus.document import Document, read_documents, write_documents
from plm_core.corpus.split import SPLITS, SplitConfig, split_of
from tasks.seam import params, paths
from tasks.seam.stage import main, stage


def clean_and_split() -> None:
    """Read sections ``clean`` and ``split``, write the three splits and the removed paragraphs."""
    config, shares = params.section("clean", CleanConfig), params.section("split", SplitConfig)
    with stage("clean", ["clean", "split"], [paths.RAW], paths.METRICS / "clean.json") as run:
        splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
        removals: list[Removal] = []
        for document, removed in clean(read_documents(paths.RAW), config):
            removals += removed
            if document.text:
                splits[split_of(document.id, shares)].append(document)
        for name, documents in splits.items():
            if not documents:
                raise BadInput(
                    f"split.{'valid' if name == 'train' else name}: no document falls on the side {name!r}; expected "
                    "at least one: ingest more documents, change the shares, or loosen `clean`"
                )
        for name, documents in splits.items():
            run.metrics[f"{name}_documents"] = write_documents(paths.CORPUS / f"{name}.parquet", documents)
            run.metrics[f"{name}_bytes"] = sum(len(d.text.encode()) for d in documents)
        write_documents(paths.REMOVED, (_as_document(removal) for removal in removals))
        rules = Counter(removal.rule for removal in removals)
        run.metrics |= {f"removed_{rule}": rules[rule] for rule in ("too_short", "too_long", "duplicate")}
        run.outputs += [paths.CORPUS, paths.REMOVED]
        kept = ", ".join(f"{name} {len(documents)}" for name, documents in splits.items())
        print(f"documents: {kept}; paragraphs removed: {dict(rules)}")


def _as_document(removal: Removal) -> Document:
    metadata: dict[str, str | int] = {
        "document": removal.document,
        "paragraph": removal.paragraph,
        "value": removal.value,
    }
    return Document(f"{removal.document}#{removal.paragraph}", removal.text, removal.rule, metadata)


if __name__ == "__main__":
    main(clean_and_split)
