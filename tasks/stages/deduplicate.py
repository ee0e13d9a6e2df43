"""Stage deduplicate: remove duplicates, split the corpus, remove evaluation examples from the training text."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from plm_core.config import UserError
from plm_core.configs.stage_configs import DeduplicateConfig
from plm_core.corpus.decontamination import HITS, DecontaminateConfig, decontaminate_part, in_groups, read_examples
from plm_core.corpus.deduplication import HELD_OUT, SidePart, deduplicate, split_part, write_side
from plm_core.corpus.document import gather_parts, parts_of, read_documents
from plm_core.corpus.normalize import paragraphs_of
from plm_core.corpus.removals import KEPT, REMOVED, counts_of
from plm_core.corpus.splits_and_mixtures import SPLITS, MixtureConfig, SplitConfig, repeats
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage
from tasks.runtime.worker_pool import pool

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
    """Read the four sections; write the three splits, what was removed, and which examples were found where."""
    rules = stage_parameters.section("deduplicate", DeduplicateConfig)
    split = stage_parameters.section("split", SplitConfig)
    against = stage_parameters.section("decontaminate", DecontaminateConfig)
    mixture = stage_parameters.section("mixture", MixtureConfig)
    sections = ["deduplicate", "split", "decontaminate", "mixture"]
    with (
        stage("deduplicate", sections, [paths.CLEAN]) as run,
        pool(run, rules, split, against, mixture) as workers,
        atomic_folder(paths.CORPUS, checksums=False) as folder,
    ):
        unique = deduplicate(parts_of([paths.CLEAN]), rules, workers)
        split_results = workers.map("split", split_part, [(part, split) for part in unique], keep=True)
        counts = counts_of(split_results)
        removed = [result / REMOVED for result in split_results]
        hits = []
        # Each side is compared with those already written. A pass writes what it removes, and the text is written last.
        for side in reversed(SPLITS):
            if side in HELD_OUT:
                parts = [SidePart(side, result / f"{side}.parquet") for result in split_results]
            else:
                parts = [SidePart(side, (part, split)) for part in unique]
            left = Counter[str]()
            for number, examples in enumerate(in_groups(_examples(side, against, folder), against)):
                if number:
                    print(f"{side}: pass {number + 1} to look for held-out text, too much for one pass", flush=True)
                if side == "train":
                    counts.update(examples=len(examples), examples_too_short=examples.too_short)
                index = workers.folder / f"examples-{side}-{number}.joblib"
                examples.write_index(index)
                results = workers.map(
                    f"{side}-{number}", decontaminate_part, [(part, index) for part in parts], keep=True
                )
                parts = [
                    replace(part, removed=(*part.removed, result / REMOVED))
                    for part, result in zip(parts, results, strict=True)
                ]
                removed += [result / REMOVED for result in results]
                hits += [result / HITS for result in results]
                left = counts_of(results)
                counts.update({name: n for name, n in left.items() if "removed_" in name.rpartition("/")[2]})

            # A document's copies are not adjacent.
            often = dict[str, float]()
            numbers = range(1, 2)
            if side == "train" and mixture.shares is not None:
                suffix = f"/{side}_bytes"
                often = repeats({k.removesuffix(suffix): n for k, n in left.items() if k.endswith(suffix)}, mixture)
                numbers = range(1, math.ceil(mixture.max_repeats) + 1)
            written = workers.map(
                f"{side}-text", write_side, [(part, often, n) for n in numbers for part in parts], keep=True
            )
            removed += [result / REMOVED for result in written]
            counts.update(counts_of(written))
            if not counts[f"{side}_documents"]:
                kept = {k: n for k, n in counts.items() if k.endswith("_documents")}
                raise UserError(
                    f"split.{'valid' if side == 'train' else side}: no document falls on the side {side!r} (so far: "
                    f"{kept}); expected at least one: ingest more documents (about fifty are enough for the demo's "
                    "shares), change the shares, or loosen the rules"
                )
            gather_parts([result / KEPT for result in written], folder / f"{side}.parquet")
        gather_parts(removed, REMOVALS)
        gather_parts(hits, paths.CONTAMINATION)
        by_source = sorted(name for name in counts if "/" in name)
        run.metrics |= {name: counts[name] for name in [*COUNTED, *by_source]}
        run.outputs += [paths.CORPUS, REMOVALS, paths.CONTAMINATION]
        print("documents:", ", ".join(f"{name} {run.metrics[f'{name}_documents']}" for name in SPLITS))
        print("removed:", {k.removeprefix("removed_"): n for k, n in run.metrics.items() if k.startswith("removed_")})


def _examples(side: str, against: DecontaminateConfig, written: Path) -> Iterator[tuple[str, str, str]]:
    """What a side is compared with: the evaluation sets, and the sides already written."""
    for file in against.examples:
        yield from read_examples(file)
    if against.held_out:
        for before in SPLITS[: SPLITS.index(side) : -1]:
            for document in read_documents(written / f"{before}.parquet"):
                for position, text in enumerate(paragraphs_of(document.text)):
                    yield before, f"{document.id}#{position}", text


if __name__ == "__main__":
    main(deduplicate_and_split)
