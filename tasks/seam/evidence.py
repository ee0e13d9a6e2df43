"""Evidence: per-example results on held-out data as CSV, what the gate compares. Written by evaluate and finetune."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from plm_core.files import atomic_text

LIKELIHOOD_COLUMNS = ("id", "sha256", "bytes", "tokens", "nats", "quantity")
"""One row a test document; ``quantity`` names what bits per byte of these nats is called."""
PREDICTION_COLUMNS = ("id", "sha256", "label", "prediction")
"""One row a test example."""


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with a header, whole or not at all; floats keep all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    atomic_text(path, text.getvalue())
