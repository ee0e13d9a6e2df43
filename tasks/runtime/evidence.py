"""Evidence, per-example results on held-out data that the gate compares, and loss curves, as CSV. Used by stages."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from plm_core.evaluation.seal import sealed
from plm_core.files import atomic_text


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with a header, whole or not at all; floats keep all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    atomic_text(path, text.getvalue())


def write_sealed(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows that the gate compares, whole or not at all, with a digest that reveals damage."""
    atomic_text(path, sealed(columns, rows))
