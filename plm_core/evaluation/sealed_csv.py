"""Rows as CSV files: loss curves, and evidence, which has a seal that states its format and reveals damage.

After the columns the header has one more, which is empty in all rows: ``format_2_sha256_<digest of all else>``. Any CSV
reader reads such a file. A file without a seal, such as one written by hand, is read without a check.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from plm_core.config import UserError
from plm_core.shared.files import RESTORE, atomic_text, sha256_text

FORMAT = 2
SEAL = re.compile("format_([0-9]+)_sha256_([0-9a-f]{64})")


def sealed(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The text of a sealed file; floats keep all their digits."""
    header, end, body = _text((*row, "") for row in (columns, *rows)).partition("\n")
    return f"{header}format_{FORMAT}_sha256_{sha256_text(header + body)}{end}{body}"


def read_sealed(path: Path) -> str:
    """Return the text of a sealed file after checking its seal, or of a file without one.

    Raises:
        UserError: it is damaged, or of another format.
        UnicodeDecodeError: it is damaged.
    """
    header, end, body = path.read_bytes().decode("utf-8").partition("\n")
    columns, comma, seal = header.rpartition(",")
    match = SEAL.fullmatch(seal)
    if not match and not re.search("format_|_sha256_", header):
        return header + end + body
    if match and int(match[1]) != FORMAT:
        raise UserError(f"{path}: is of format {match[1]}; expected {FORMAT}: evaluate the model with this version")
    if not match or sha256_text(columns + comma + body) != match[2]:
        raise UserError(f"{path}: damaged: its digest is not the one in its header; {RESTORE}")
    return header + end + body


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with a header, whole or not at all; floats keep all their digits."""
    atomic_text(path, _text((columns, *rows)))


def write_sealed(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows that the gate compares, whole or not at all, with a digest that reveals damage."""
    atomic_text(path, sealed(columns, rows))


def _text(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
