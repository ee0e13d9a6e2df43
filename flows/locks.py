"""The one lock between processes, and the one way to replace a file that another process may read meanwhile."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Hold the file or folder ``path`` while the block runs; a missing file is created, and stays.

    Yields the descriptor: the lock ends with the last process that has inherited it.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is not set.
    """
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | (0 if path.is_dir() else os.O_CREAT), 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old text or the new, and a kill leaves one of them."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
