"""Stage card: the dataset card, from what the earlier stages actually read, removed and kept.

`artifacts/card/README.md` is in the form of the dataset cards of the Hugging Face hub; `card.json` holds its figures.
Neither holds a time or a run id: the same corpus gives the same bytes.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from plm_core.corpus import corpus_statistics
from plm_core.corpus.corpus_statistics import excerpt
from plm_core.corpus.part_pool import Pool
from plm_core.corpus.removals import Removal
from plm_core.corpus.splits_and_mixtures import SPLITS
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder, sha256_path
from plm_core.templates import render
from tasks.parameters import stage_parameters
from tasks.reporting.html_page import figure_svg, plotting
from tasks.runtime.stage import main, stage
from tasks.runtime.worker_pool import pool

SECTIONS = ["sources", "clean", "deduplicate", "split", "decontaminate", "mixture"]
FILES = [paths.CLEAN, paths.CORPUS, paths.REMOVED, paths.CONTAMINATION]
METRICS = [paths.METRICS / "clean.json", paths.METRICS / "deduplicate.json"]
CATEGORIES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
WORST = 5
COMMON = 12


def card() -> None:
    """Read the corpus and what was removed from it, and write the card."""
    with (
        stage("card", SECTIONS, [*FILES, paths.ORIGINS, paths.QUARANTINED, *METRICS], metrics=False) as run,
        pool(run) as workers,
        atomic_folder(paths.CARD, checksums=False) as folder,
    ):
        figures = _figures(workers)
        (folder / "card.json").write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for name, picture in _pictures(figures).items():
            (folder / name).write_text(picture, encoding="utf-8")
        # The card: the figures, and the metadata that the hub reads.
        documents = sum(split["documents"] for split in figures["splits"].values())
        keep = (figures["parameters"]["clean"].get("languages") or {}).get("keep", [])
        text = render(
            "tasks/reporting/templates/card.md.j2",
            **figures,
            size_category=next((name for most, name in CATEGORIES if documents < most), "n>1M"),
            kept_languages=[code for code in figures["languages"] if code in keep],
            licenses=sorted({origin["license"] for origin in figures["sources"].values()}),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
        run.outputs.append(paths.CARD)
        print(f"card: {paths.CARD / 'README.md'}")


def _figures(workers: Pool) -> dict[str, Any]:
    """Everything that the card says."""
    names = stage_parameters.section_names("sources")
    splits = {split: corpus_statistics.sizes(paths.CORPUS / f"{split}.parquet", workers) for split in SPLITS}
    clean = json.loads(METRICS[0].read_text(encoding="utf-8"))
    languages = {k.removeprefix("language_"): n for k, n in clean.items() if k.startswith("language_")}
    # What ingest wrote for other sources is not part of this corpus.
    files = {name: (paths.ORIGINS / f"{name}.json", paths.QUARANTINED / f"{name}.jsonl") for name in names}
    # Each reason of a quarantine with its count and one example.
    quarantined: dict[str, list[dict[str, Any]]] = {}
    for name, (_, path) in files.items():
        reasons: dict[str, dict[str, Any]] = {}
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            reason = reasons.setdefault(row["reason"], {"reason": row["reason"], "records": 0, "example": row})
            reason["records"] += 1
        quarantined[name] = list(reasons.values())
    # What was removed by each rule, and near-duplicates with the text that was kept.
    removed = []
    near: dict[str, Removal] = {}
    for rule in corpus_statistics.rules(
        [paths.REMOVED / f"{name}.parquet" for name in ("clean", "deduplicate")], workers
    ):
        examples = [
            {"document": r.document, "paragraph": r.paragraph, "value": r.value, "text": excerpt(r.text)}
            for r in rule.examples
        ]
        counts = {"texts": rule.by_source.total(), "by_source": dict(sorted(rule.by_source.items()))}
        removed.append({"level": rule.level, "rule": rule.name, **counts, "bytes": rule.bytes, "examples": examples})
        if rule.name == "near_duplicate":
            near |= {r.value.rpartition(" (similarity ")[0]: r for r in rule.examples}
    texts = corpus_statistics.texts_of(near, paths.CLEAN, workers)
    repeated = [
        {"kept": name, "removed": r.document if r.paragraph is None else f"{r.document}#{r.paragraph}"}
        | {"similarity": r.value.rpartition(" ")[2].rstrip(")")}
        | {"kept_text": excerpt(texts[name]), "removed_text": excerpt(r.text)}
        for name, r in near.items()
    ]
    hits = pq.read_table(paths.CONTAMINATION).to_pylist()
    contaminated = Counter(evaluation for evaluation, _ in {(hit["evaluation"], hit["example"]) for hit in hits})
    worst = sorted(hits, key=lambda hit: (-hit["overlap"], hit["evaluation"], hit["example"], hit["document"]))[:WORST]
    examples = [hit | {"text": excerpt(hit["text"]), "overlap": round(hit["overlap"], 4)} for hit in worst]
    return {
        "sources": {name: json.loads(origin.read_text("utf-8")) for name, (origin, _) in files.items()},
        "quarantined": quarantined,
        "removed": removed,
        "repeated": repeated,
        "contamination": {"found": dict(sorted(contaminated.items())), "examples": examples},
        "splits": {split: vars(corpus_statistics.sum_sizes(by.values())) for split, by in splits.items()},
        "bytes_by_source": {split: {name: part.bytes for name, part in by.items()} for split, by in splits.items()},
        "languages": dict(Counter(languages).most_common()),
        "metrics": {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in METRICS},
        # Text that looks like a date is a date to YAML, and JSON has none.
        "parameters": json.loads(json.dumps({name: stage_parameters.read(name) for name in SECTIONS}, default=str)),
        "sha256": {path.as_posix(): sha256_path(path) for path in [*FILES, *itertools.chain(*files.values())]},
    }


def _pictures(figures: Mapping[str, Any]) -> dict[str, str]:
    """The histograms of lengths and languages, as SVG by file name."""
    pyplot = plotting()
    pictures = {}
    figure, both = pyplot.subplots(1, 2, figsize=(9.2, 3.2), layout="constrained")
    for axes, level in zip(both, ("document", "paragraph"), strict=True):
        counts = Counter[int]()
        for split in figures["splits"].values():
            counts.update({int(bound): count for bound, count in split[f"{level}_words"].items()})
        bounds = sorted(counts)
        axes.bar([str(bound) for bound in bounds], [counts[bound] for bound in bounds], color="#3b6ea5")
        axes.set(xlabel=f"words per {level}, at most", ylabel=f"{level}s")
        axes.tick_params(axis="x", labelrotation=45)
    pictures["lengths.svg"] = figure_svg(figure)
    if figures["languages"]:
        shown = list(figures["languages"].items())[:COMMON]
        figure, axes = pyplot.subplots(figsize=(4.6, 3.2), layout="constrained")
        axes.bar([code for code, _ in shown], [count for _, count in shown], color="#3b6ea5")
        axes.set(xlabel="language", ylabel="documents", yscale="log")
        axes.set_ylim(bottom=0.8)
        axes.yaxis.set_major_formatter("{x:,g}")
        pictures["languages.svg"] = figure_svg(figure)
    return pictures


if __name__ == "__main__":
    main(card)
