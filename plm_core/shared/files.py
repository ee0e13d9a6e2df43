"""What keeps a file whole when processes share it, or are killed: one atomic writer, one lock. Used by every room.

However a library reports a full disk, it is raised from here as an OSError that names the file.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Disk errors: it is full, a quota or a limit is reached, it is read-only, or it fails."""

CHECKSUMS = "SHA256SUMS"
"""The checksum list of a folder, in the format of ``sha256sum``: ``sha256sum --check SHA256SUMS`` reads it too."""

TRIES = 20
"""How often a lock is tried: whoever looks whether it is ``held`` has it for a moment."""
PAUSE_S = 0.05


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


def taken(descriptor: int) -> bool:
    """Lock an open file until it is closed; False if another process has it."""
    for _ in range(TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(PAUSE_S)
    return False


def held(path: Path) -> bool:
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
    Raises OSError: the block could not write, however its libraries report that; it names a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear(path, "tmp")
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield new
    except Exception as error:  # whatever the library raises; anything but a disk error is raised unchanged
        # The operating system's errno; safetensors and Arrow give it only in their messages.
        found = re.search(r"\b(?:os error|errno) (\d+)", str(error))
        number = (isinstance(error, OSError) and error.errno) or (int(found[1]) if found else 0)
        if number not in DISK or getattr(error, "filename", None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        _remove(new)


def clear(path: Path, ending: str) -> None:
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
