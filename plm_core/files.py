"""Files and folders that are whole or absent: atomic writes, digests, checksum lists. Used wherever one is kept."""

import contextlib
import functools
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from plm_core.shared.errors import UserError
from plm_core.shared.files import CHECKSUMS as CHECKSUMS
from plm_core.shared.files import atomic_file as atomic_file
from plm_core.shared.files import atomic_text as atomic_text
from plm_core.shared.files import clear, flush, sha256, temporary

SETTLED_S = 2
"""Seconds after which another change of a file is certain to show in its change time (ctime)."""

RESTORE = "restore it with `dvc checkout` or `dvc pull`, or delete it and run its stage again"


def sha256_text(text: str) -> str:
    """The sha256 (hex) of the text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """The sha256 (hex) of a file's bytes. A process reads an unchanged file only once."""
    found = path.stat()
    if time.time() - found.st_ctime < SETTLED_S:
        return sha256(path)
    return _remembered(path.absolute(), found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


@functools.lru_cache(maxsize=4096)
def _remembered(path: Path, *_state: int) -> str:
    return sha256(path)


def sha256_path(path: Path) -> str:
    """The sha256 (hex) of a file, or of a folder: of its sorted list of relative names and their digests."""
    if path.is_file():
        return sha256_file(path)
    files = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sha256_text("".join(f"{sha256_file(p)}  {p.relative_to(path).as_posix()}\n" for p in files))


@contextlib.contextmanager
def atomic_folder(path: Path, checksums: bool = True) -> Iterator[Path]:
    """Yield a new empty folder that becomes ``path`` if the block succeeds, and is removed otherwise.

    The files and the rename are flushed to the disk, so that after a crash ``path`` is the old folder, the new one or
    absent, never half of one. With ``checksums`` a ``SHA256SUMS`` of its files is added.
    """
    with temporary(path) as new:
        new.mkdir()
        yield new
        if checksums:
            write_checksums(new)
        flush_folder(new)
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        new.rename(path)
        flush(path.parent)
        clear(path, "old")


def write_checksums(folder: Path) -> None:
    """Write the ``SHA256SUMS`` of all files in ``folder``."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != CHECKSUMS)
    lines = [f"{sha256_file(p)}  {p.relative_to(folder).as_posix()}\n" for p in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def verify_checksums(folder: Path) -> None:
    """Compare every file named in ``SHA256SUMS`` with its digest.

    Raises:
        UserError: the folder or its list is missing, a named file is missing, or its bytes have changed.
    """
    listing = folder / CHECKSUMS
    if not listing.is_file():
        raise UserError(f"{listing}: missing; expected a folder written by this pipeline")
    *lines, rest = listing.read_bytes().decode("utf-8", errors="replace").split("\n")
    recorded = {}
    for number, line in enumerate(lines, start=1):
        expected, _, name = line.partition("  ")
        if len(expected) != 64 or not name:
            raise UserError(f"{listing}:{number}: damaged line; expected '<sha256>  <file name>'")
        recorded[name] = expected
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p != listing}
    for name in recorded.keys() - present:
        raise UserError(f"{folder / name}: missing, though {listing} names it; {RESTORE}")
    if rest or present - recorded.keys():
        odd = ", ".join(sorted(present - recorded.keys())) or "its last line has no newline"
        raise UserError(f"{listing}: does not list every file in its folder ({odd}); {RESTORE}")
    for name, expected in recorded.items():
        if (found := sha256_file(folder / name)) != expected:
            raise UserError(
                f"{folder / name}: checksum {found[:12]} differs from the recorded {expected[:12]}: damaged; {RESTORE}"
            )


def flush_folder(path: Path) -> None:
    """Flush the folder and everything in it to the disk."""
    for file in (*path.rglob("*"), path):
        flush(file)
