"""Stage deduplicate: remove duplicates, split the corpus, remove evaluation examples from the training text."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from plm_core.config import UserError
from plm_core.corpus.account import KEPT, REMOVED, summed
from plm_core.corpus.decontaminate import HITS, DecontaminateConfig, decontaminate_part, in_parts, write_index
from plm_core.corpus.deduplicate import deduplicate, split_part
from plm_core.corpus.document import read_documents
from plm_core.corpus.examples import read_examples
from plm_core.corpus.mixture import MixtureConfig, repeat_part, repeats
from plm_core.corpus.normalize import paragraphs_of
from plm_core.corpus.parts import gather, parts_of
from plm_core.corpus.pool import Pool
from plm_core.corpus.split import SPLITS, SplitConfig
from plm_core.files import atomic_file, atomic_folder
from plm_core.sections.deduplicate import DeduplicateConfig
from plm_core.shared import paths
from tasks.runtime.pools import pool
from tasks.runtime.stage import main, stage
from tasks.settings import params

REMOVALS = paths.REMOVED / "deduplicate.parquet"
COUNTED = (
    *(f"{split}_{what}" for split in SPLITS for what in ("documents", "paragraphs", "bytes")),
    *(f"removed_documents_{rule}" for rule in ("exact_duplicate", "near_duplicate", "emptied", "mixture")),
    *(f"removed_paragraphs_{rule}" for rule in ("exact_duplicate", "near_duplicate", "contaminated", "with_documents")),
    "examples",
    "examples_too_short",
)
"""The metrics, including zeros; those by source follow."""


def deduplicate_and_split() -> None:
    """Read the four sections, write the three splits, what was removed, and which examples were found where."""
    rules = params.section("deduplicate", DeduplicateConfig)
    shares = params.section("split", SplitConfig)
    against = params.section("decontaminate", DecontaminateConfig)
    mixture = params.section("mixture", MixtureConfig)
    sections = ["deduplicate", "split", "decontaminate", "mixture"]
    with (
        stage("deduplicate", sections, [paths.CLEAN]) as run,
        pool(run, rules, shares, against, mixture) as workers,
    ):
        found = deduplicate(parts_of([paths.CLEAN]), rules, workers)
        sides = _Sides(workers, workers.map("split", split_part, [(each, shares) for each in found]))
        with atomic_folder(paths.CORPUS, checksums=False) as folder:
            # Each side is compared with those already written.
            for side in reversed(SPLITS):
                sides.take_out(side, against, folder)
                if side == "train" and mixture.shares is not None:
                    sides.mix(side, mixture)
                sides.write(side, folder)
        gather(sides.removed, REMOVALS)
        gather(sides.hits, paths.CONTAMINATION)
        by_source = sorted(name for name in sides.counts if "/" in name)
        run.metrics |= {name: sides.counts[name] for name in [*COUNTED, *by_source]}
        run.outputs += [paths.CORPUS, REMOVALS, paths.CONTAMINATION]
        print("documents:", ", ".join(f"{name} {run.metrics[f'{name}_documents']}" for name in SPLITS))
        print("removed:", {k.removeprefix("removed_"): n for k, n in run.metrics.items() if k.startswith("removed_")})


class _Sides:
    """The sides of the split, each as one file per part, and what is removed from them."""

    def __init__(self, workers: Pool, split: Sequence[Path]) -> None:
        """``split``: the results of ``split_part``, in order."""
        self.removed = [result / REMOVED for result in split]
        """Files of removed text, in order."""
        self.hits: list[Path] = []
        """Files of the examples found, in order."""
        self.counts, _ = summed(split)
        self._workers = workers
        self._files = {side: [result / f"{side}.parquet" for result in split] for side in SPLITS}
        self._sizes = Counter[str]()

    def take_out(self, side: str, against: DecontaminateConfig, written: Path) -> None:
        """Remove the evaluation examples in files and in the sides already written to a folder."""
        for number, examples in enumerate(in_parts(_examples(side, against, written), against)):
            if number:
                print(f"{side}: pass {number + 1} to look for held-out text, too much for one pass", flush=True)
            if side == "train":
                self.counts.update(examples=len(examples), examples_too_short=examples.too_short)
            index = self._workers.folder / f"examples-{side}-{number}.joblib"
            with atomic_file(index) as file:
                write_index(examples, file)
            items = [(file, index, side) for file in self._files[side]]
            results = self._workers.map(f"{side}-{number}", decontaminate_part, items)
            self.hits += [result / HITS for result in results]
            self._follow(side, results)

    def mix(self, side: str, mixture: MixtureConfig) -> None:
        """Repeat and thin out documents so that each source has its share."""
        suffix = f"/{side}_bytes"
        sizes = {name.removesuffix(suffix): size for name, size in self._sizes.items() if name.endswith(suffix)}
        often = repeats(sizes, mixture)
        # A document's copies are not adjacent.
        numbers = range(1, math.ceil(mixture.max_repeats) + 1)
        items = [(file, often, number, side) for number, file in product(numbers, self._files[side])]
        self._follow(side, self._workers.map("mixture", repeat_part, items))

    def write(self, side: str, folder: Path) -> None:
        """Write what is left of a side into a folder.

        Raises:
            UserError: nothing is left.
        """
        self.counts += self._sizes
        if not self.counts[f"{side}_documents"]:
            raise _nothing_on(side, self.counts)
        gather(self._files[side], folder / f"{side}.parquet")

    def _follow(self, side: str, results: Sequence[Path]) -> None:
        """Continue with what a pass has left of a side."""
        removals, self._sizes = summed(results)
        self.counts += removals
        self.removed += [result / REMOVED for result in results]
        for read in self._files[side]:  # each pass leaves a copy of the text
            read.unlink(missing_ok=True)
        self._files[side] = [result / KEPT for result in results]


def _examples(side: str, against: DecontaminateConfig, written: Path) -> Iterator[tuple[str, str, str]]:
    for file in against.examples:
        yield from read_examples(file)
    if against.held_out:
        for before in SPLITS[: SPLITS.index(side) : -1]:
            for document in read_documents(written / f"{before}.parquet"):
                for position, text in enumerate(paragraphs_of(document.text)):
                    yield before, f"{document.id}#{position}", text


def _nothing_on(side: str, counts: Counter[str]) -> UserError:
    share = "valid" if side == "train" else side
    kept = {k: n for k, n in counts.items() if k.endswith("_documents")}
    return UserError(
        f"split.{share}: no document falls on the side {side!r} (so far: {kept}); expected at least one: ingest more "
        "documents (about fifty are enough for the demo's shares), change the shares, or loosen the rules"
    )


if __name__ == "__main__":
    main(deduplicate_and_split)
