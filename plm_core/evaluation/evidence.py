"""Evidence: per-example results on held-out data, which the gate compares. Written by stages evaluate and finetune.

A folder of CSV files with one row a held-out example:

* ``likelihood.csv``: ``id,sha256,bytes,tokens,nats,quantity,measured``; the metric is named by ``quantity``
  (``bits_per_byte``, ``pseudo_bits_per_byte``, ``fixed_order_bits_per_byte``): sum(nats) / ln 2 / sum(bytes). With
  ``lossy_`` before it, it is of a model whose tokenizer does not keep all of a text, and is never compared.
  ``sha256`` is the whole document's, ``bytes`` and ``tokens`` those that were scored: fewer, where only an excerpt was;
* ``<task>.csv``: ``id,sha256,label,prediction,measured``; the metric ``<task>/accuracy`` is the share of equal pairs.

``measured`` is a digest of what else the result depends on, beside model and example: the parameters of the measurement
and, for a task, the text that was trained on.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from plm_core.config import BadInput

LIKELIHOOD = "likelihood.csv"
QUANTITIES = ("bits_per_byte", "pseudo_bits_per_byte", "fixed_order_bits_per_byte")
LOSSY = "lossy_"
"""Begins the name of a quantity where the tokenizer drops some of the text: the bits are those of what is left, so they
are fewer the more it drops."""
LIKELIHOOD_COLUMNS = ("id", "sha256", "bytes", "tokens", "nats", "quantity", "measured")
TASK_COLUMNS = ("id", "sha256", "label", "prediction", "measured")


@dataclass(frozen=True)
class Table:
    """One evidence file: which examples, and the one metric that their results make."""

    examples: frozenset[tuple[str, str, str, str]]
    """(id, sha256, measured, bytes or label): equal sets mean the same examples, measured by the same rules."""
    metric: str
    value: float

    @property
    def documents(self) -> frozenset[tuple[str, ...]]:
        """(id, sha256, measured): the same, also where other lengths of them were looked at."""
        return frozenset(example[:3] for example in self.examples)


def read_likelihood(path: Path) -> Table:
    """Read ``likelihood.csv``.

    Raises:
        BadInput: it is damaged, or of no or several quantities.
    """
    rows = _rows(path, LIKELIHOOD_COLUMNS)
    quantities = sorted({row["quantity"] for row in rows})
    if len(quantities) > 1 or quantities[0].removeprefix(LOSSY) not in QUANTITIES:
        raise BadInput(
            f"{path}: the column quantity holds {', '.join(quantities)}; expected one of {', '.join(QUANTITIES)}"
        )
    try:
        size = sum(int(row["bytes"]) for row in rows)
        # fsum is exact: the order of the rows changes no digit.
        nats = math.fsum(float(row["nats"]) for row in rows)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{path}: {error}; expected numbers in the columns bytes and nats") from error
    if size <= 0:
        raise BadInput(f"{path}: {size} bytes of text; expected at least 1")
    return Table(_examples(rows, "bytes"), quantities[0], nats / math.log(2) / size)


def read_task(path: Path) -> Table:
    """Read a task's file.

    Raises:
        BadInput: it is damaged.
    """
    rows = _rows(path, TASK_COLUMNS)
    correct = sum(row["label"] == row["prediction"] for row in rows)
    return Table(_examples(rows, "label"), f"{path.stem}/accuracy", correct / len(rows))


def _examples(rows: list[dict[str, str]], content: str) -> frozenset[tuple[str, str, str, str]]:
    return frozenset((row["id"], row["sha256"], row["measured"], row[content]) for row in rows)


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            fields = reader.fieldnames or ()
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: damaged ({error}); expected a CSV file in UTF-8") from error
    if missing := [name for name in columns if name not in fields]:
        raise BadInput(f"{path}: lacks the columns {', '.join(missing)}; expected {','.join(columns)}")
    if not rows:
        raise BadInput(f"{path}: holds no example; expected at least one row")
    seen: set[str] = set()
    for number, row in enumerate(rows, start=2):
        if any(row[name] is None for name in columns):
            raise BadInput(f"{path}:{number}: too few fields; expected {','.join(columns)}")
        if row["id"] in seen:
            raise BadInput(f"{path}:{number}: the id {row['id']!r} occurs twice; expected one row an example")
        seen.add(row["id"])
    return rows
