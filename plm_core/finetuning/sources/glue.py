"""The nine tasks of GLUE: the official files in a folder, or the hub's dataset. Both give the same examples.

The official test sets have no labels. What is called dev there is the test split here, which the literature's dev
scores are measured on; the validation split is held out of the training set.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from plm_core.config import BadInput
from plm_core.corpus.hub import HubPin, hub_rows, read_pin
from plm_core.finetuning.examples import Example
from plm_core.finetuning.sources.rows import Content, Reader, file_rows
from plm_core.finetuning.table import Part, Published
from plm_core.finetuning.task import GlueTask

RAGGED = ("wrong_fields", "broken_csv", "empty_text")
"""For what a row of a ragged file is dropped."""


class Found(NamedTuple):
    """What a source of GLUE gave."""

    splits: dict[str, list[Example]]
    counts: dict[str, int]
    """Rows of each part, the published ones, and the dropped ones by reason."""
    warnings: list[str]


def read(task: GlueTask, published: Published, source: Path) -> Found:
    """The examples of the splits train and test from a folder, or from the hub where ``source`` is a manifest.

    Raises:
        BadInput: a file is missing, a row of it is no example, or the hub has not what the manifest says.
        OSError: the hub cannot be reached.
    """
    files = source.is_dir()
    coded = files and published.coded
    codes = {str(i) if coded else label: i for i, label in enumerate(task.labels)}
    columns = published.columns if files else published.hub
    reader = Reader(task, columns, codes, RAGGED if published.ragged else ())
    rows = _file_parts(published, source) if files else _hub_parts(task, published, source)
    parts = {part: list(reader.read(content, part.file, part.subset)) for part, content in rows}
    train, *dev = parts.values()
    counts, warnings = _compared(task, parts, reader)
    return Found({"train": train, "test": list(chain(*dev))}, counts, warnings)


def _file_parts(published: Published, folder: Path) -> Iterator[tuple[Part, Iterator[tuple[str, Content]]]]:
    for part in published.parts:
        file = folder / f"{part.file}.tsv"
        if not file.is_file():
            raise BadInput(f"{file}: missing; expected the official layout, the files of its folder {published.folder}")
        yield part, file_rows(file, published.header)


def _hub_parts(
    task: GlueTask, published: Published, manifest: Path
) -> Iterator[tuple[Part, Iterator[tuple[str, Content]]]]:
    pin = read_pin(HubPin, manifest)
    for part in published.parts:
        rows = hub_rows(pin, task.name, part.hub, manifest, named=True)
        place = f"{manifest}: {pin.dataset} {task.name} {part.hub}"
        yield part, ((f"{place}:{number}", row) for number, row in enumerate(rows, start=1))


def _compared(task: GlueTask, parts: dict[Part, list[Example]], reader: Reader) -> tuple[dict[str, int], list[str]]:
    """How many rows each part has, beside how many it should have; a row with an empty text is one all the same."""
    counts: dict[str, int] = {}
    warnings = []
    for part, examples in parts.items():
        dropped = {reason: n for (name, reason), n in reader.dropped.items() if name == part.file}
        rows = len(examples) + dropped.get("empty_text", 0)
        counts |= {f"{part.file}_rows": rows, f"{part.file}_rows_published": part.rows}
        counts |= {f"{part.file}_dropped_{reason}": n for reason, n in sorted(dropped.items())}
        if rows != part.rows:
            warnings.append(
                f"{task.name}: {part.file} has {rows:,} rows, published are {part.rows:,}; "
                "scores are not comparable with the literature"
            )
        if dropped:
            reasons = ", ".join(f"{n} for {reason}" for reason, n in sorted(dropped.items()))
            warnings.append(f"{task.name}: {part.file}: rows dropped, as official readers do: {reasons}")
    return counts, warnings
