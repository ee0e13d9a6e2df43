"""Files and folders that are whole or absent, even if processes share them or are killed: locks, writes, digests.

However a library reports a full disk, it is raised from here as an OSError that names the file. Used wherever a file is
kept.
"""

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from plm_core.shared.errors import UserError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Disk errors: it is full, a quota or a limit is reached, it is read-only, or it fails."""

CHECKSUMS = "SHA256SUMS"
"""The checksum list of a folder, in the format of ``sha256sum``: ``sha256sum --check SHA256SUMS`` reads it too."""

TRIES = 20
"""How often a lock is tried, because a process that calls ``is_locked`` holds it for a moment."""
PAUSE_S = 0.05
SETTLED_S = 2
"""Seconds after which another change of a file is certain to show in its change time (ctime)."""

RESTORE = "restore it with `dvc checkout` or `dvc pull`, or delete it and run its stage again"


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Hold a file, or a folder that exists, for the block; yields its descriptor.

    The lock (flock(2)) also lasts as long as a process that inherited the descriptor keeps it open. The file stays, so
    that all processes lock the same one.

    Raises:
        BlockingIOError: another process holds it, and this one does not ``wait``.
        OSError: it cannot be locked, such as a folder on NFS.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False if another process has it."""
    for _ in range(TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(PAUSE_S)
    return False


def is_locked(path: Path) -> bool:
    """Whether a living process has locked a file; False if there is none."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def sha256(path: Path) -> str:
    """The sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a name to write to that becomes ``path`` if the block succeeds, and is removed otherwise."""
    with temporary(path) as new:
        yield new
        flush(new)
        new.replace(path)


def atomic_text(path: Path, text: str) -> None:
    """Write a text file so that readers see the old content or the new, never part of it."""
    with atomic_file(path) as new:
        new.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield the hidden name under which ``path`` is written; leftovers of the block or of killed processes are removed.
    Raises OSError, which names a file: the block could not write, however its libraries report that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path, "tmp")
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield new
    except Exception as error:  # whatever the library raises; anything but a disk error is raised unchanged
        # The operating system's errno; safetensors and Arrow give it only in their messages.
        match = re.search(r"\b(?:os error|errno) (\d+)", str(error))
        number = (isinstance(error, OSError) and error.errno) or (int(match[1]) if match else 0)
        if number not in DISK or getattr(error, "filename", None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        _remove(new)


def remove_leftovers(path: Path, ending: str) -> None:
    """Remove what killed processes left next to ``path``."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*.{ending}"):
        _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file or a folder's list of names to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_text(text: str) -> str:
    """The sha256 (hex) of the text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """The sha256 (hex) of a file's bytes. A process reads an unchanged file only once."""
    stat = path.stat()
    if time.time() - stat.st_ctime < SETTLED_S:
        return sha256(path)
    return _remembered(path.absolute(), stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime_ns)


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
        remove_leftovers(path, "old")


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
        if (digest := sha256_file(folder / name)) != expected:
            raise UserError(
                f"{folder / name}: checksum {digest[:12]} differs from the recorded {expected[:12]}: damaged; {RESTORE}"
            )


def flush_folder(path: Path) -> None:
    """Flush the folder and everything in it to the disk."""
    for file in (*path.rglob("*"), path):
        flush(file)
