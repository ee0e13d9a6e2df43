"""Stage deduplicate: duplicates leave the corpus, it is split, and evaluation examples leave the training text."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from plm_core.config import UserError
from plm_core.corpus.decontaminate import DecontaminateConfig, Hit, decontaminate, hit_writer, in_parts
from plm_core.corpus.deduplicate import Deduplicated, deduplicate
from plm_core.corpus.document import Document, document_writer, read_documents, write_documents
from plm_core.corpus.examples import read_examples
from plm_core.corpus.mixture import MixtureConfig, copies, repeats
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.removal import Removal, removal_writer
from plm_core.corpus.split import SPLITS, SplitConfig, split_of
from plm_core.corpus.tables import RowWriter
from plm_core.files import atomic_folder, scratch_folder
from plm_core.sections.deduplicate import DeduplicateConfig
from plm_core.shared import paths
from tasks.runtime.stage import main, stage
from tasks.settings import params
from tasks.settings.machine import memory

REMOVED = paths.REMOVED / "deduplicate.parquet"
COUNTS = (
    *(f"{split}_{what}" for split in SPLITS for what in ("documents", "paragraphs", "bytes")),
    *(f"removed_documents_{rule}" for rule in ("exact_duplicate", "near_duplicate", "emptied", "mixture")),
    *(f"removed_paragraphs_{rule}" for rule in ("exact_duplicate", "near_duplicate", "contaminated", "with_documents")),
    "examples",
    "examples_too_short",
)
"""The metrics, zeros too; those by source follow."""


class _Account:
    """Writes down what is removed, and counts: documents and paragraphs read are those kept and those removed."""

    def __init__(self, removed: RowWriter[Removal], hits: RowWriter[Hit]) -> None:
        self.counts = Counter[str]()
        self._removed = removed
        self._hits = hits

    def count(self, source: str, name: str, number: int = 1) -> None:
        """Count for all sources, and for this one."""
        self.counts[name] += number
        self.counts[f"{source}/{name}"] += number

    def take(self, removals: Iterable[Removal], hits: Iterable[Hit] = ()) -> None:
        """Removals, and the evaluation examples that were the reason."""
        for removal in removals:
            self.count(removal.source, f"removed_{removal.level}_{removal.rule}")
            if removal.paragraph is None:
                self.count(removal.source, "removed_paragraphs_with_documents", len(removal.text.split(BETWEEN)))
            self._removed.write(removal)
        for hit in hits:
            self._hits.write(hit)

    def kept(self, document: Document, removals: list[Removal]) -> bool:
        """Whether anything is left of a document; one that lost all its paragraphs is counted."""
        if not document.text and all(removal.paragraph is not None for removal in removals):
            self.count(document.source, "removed_documents_emptied")
        return bool(document.text)


def deduplicate_and_split() -> None:
    """Read the four sections, write the three splits, what was removed, and which examples were found where."""
    rules = params.section("deduplicate", DeduplicateConfig)
    shares = params.section("split", SplitConfig)
    against = params.section("decontaminate", DecontaminateConfig)
    mixture = params.section("mixture", MixtureConfig)
    sections = ["deduplicate", "split", "decontaminate", "mixture"]
    with stage("deduplicate", sections, [paths.CLEAN]) as run:
        with (
            scratch_folder(paths.CORPUS) as scratch,
            atomic_folder(paths.CORPUS, checksums=False) as folder,
            removal_writer(REMOVED) as removed,
            hit_writer(paths.CONTAMINATION) as hits,
        ):
            account = _Account(removed, hits)
            found = deduplicate(lambda: read_documents(paths.CLEAN), rules, scratch, memory())
            _write_sides(found, shares, scratch, account)
            # What comes later is compared with what was before.
            for name in reversed(SPLITS):
                documents = _without_examples(name, against, scratch, folder, account)
                if name == "train":
                    documents = _mixed(documents, mixture, scratch / "unmixed.parquet", account)
                if not write_documents(folder / f"{name}.parquet", _measured(documents, name, account)):
                    raise _nothing_on(name, account.counts)
        by_source = sorted(name for name in account.counts if "/" in name)
        run.metrics |= {name: account.counts[name] for name in [*COUNTS, *by_source]}
        run.outputs += [paths.CORPUS, REMOVED, paths.CONTAMINATION]
        print("documents:", ", ".join(f"{name} {run.metrics[f'{name}_documents']}" for name in SPLITS))
        print("removed:", {k.removeprefix("removed_"): n for k, n in run.metrics.items() if k.startswith("removed_")})


def _write_sides(found: Iterable[Deduplicated], shares: SplitConfig, folder: Path, account: _Account) -> None:
    """Each document goes into the file of its side."""
    with ExitStack() as files:
        sides = {name: files.enter_context(document_writer(folder / f"{name}.parquet")) for name in SPLITS}
        for each in found:
            account.take(each.removals)
            if account.kept(each.document, each.removals):
                sides[split_of(each.group, shares)].write(each.document)


def _without_examples(
    side: str, against: DecontaminateConfig, scratch: Path, folder: Path, account: _Account
) -> Iterator[Document]:
    """The documents of a side without the evaluation examples that lie in files and on the sides written before."""
    documents = read_documents(scratch / f"{side}.parquet")
    for number, examples in enumerate(in_parts(_examples(side, against, folder), against)):
        if number:
            unfinished = scratch / f"{side}-{number}.parquet"
            write_documents(unfinished, documents)
            documents = read_documents(unfinished)
        if side == "train":
            account.counts.update(examples=len(examples), examples_too_short=examples.too_short)
        documents = _kept(decontaminate(documents, examples), account)
    return documents


def _kept(found: Iterable[tuple[Document, list[Removal], list[Hit]]], account: _Account) -> Iterator[Document]:
    for document, removals, hits in found:
        account.take(removals, hits)
        if account.kept(document, removals):
            yield document


def _examples(side: str, against: DecontaminateConfig, folder: Path) -> Iterator[tuple[str, str, str]]:
    for file in against.examples:
        yield from read_examples(file)
    if against.held_out:
        for before in SPLITS[: SPLITS.index(side) : -1]:
            for document in read_documents(folder / f"{before}.parquet"):
                for position, text in enumerate(paragraphs_of(document.text)):
                    yield before, f"{document.id}#{position}", text


def _mixed(
    documents: Iterable[Document], mixture: MixtureConfig, unmixed: Path, account: _Account
) -> Iterator[Document]:
    """Documents as often as the shares of their sources want it; a repeated one has a number behind its id."""
    sizes = Counter[str]()

    def sized() -> Iterator[Document]:
        for document in documents:
            sizes[document.source] += len(document.text.encode())
            yield document

    write_documents(unmixed, sized())
    often = repeats(sizes, mixture)
    for number in range(1, math.ceil(mixture.max_repeats) + 1):  # a document's copies do not stand together
        for document in read_documents(unmixed):
            times = copies(document.id, often[document.source])
            if number == 1 and times == 0:
                value = f"0 copies; of its source, {often[document.source]:.3f} of each document"
                account.take([Removal(document.id, None, document.source, "mixture", value, document.text)])
            if number <= times:
                yield document if number == 1 else replace(document, id=f"{document.id} (copy {number})")


def _measured(documents: Iterable[Document], side: str, account: _Account) -> Iterator[Document]:
    for document in documents:
        account.count(document.source, f"{side}_documents")
        account.count(document.source, f"{side}_paragraphs", len(paragraphs_of(document.text)))
        account.count(document.source, f"{side}_bytes", len(document.text.encode()))
        yield document


def _nothing_on(side: str, counts: Counter[str]) -> UserError:
    share = "valid" if side == "train" else side
    kept = {k: n for k, n in counts.items() if k.endswith("_documents")}
    return UserError(
        f"split.{share}: no document falls on the side {side!r} (so far: {kept}); expected at least one: ingest more "
        "documents (some fifty do for the demo's shares), change the shares, or loosen the rules"
    )


if __name__ == "__main__":
    main(deduplicate_and_split)
