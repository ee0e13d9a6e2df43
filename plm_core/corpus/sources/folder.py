"""A team's own text: a file, or the files of a folder, in the formats of ``plm_core/corpus/records.py``.

The source ``folder``. A record that cannot be used does not stop it, but is yielded as ``Quarantined``.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from plm_core.config import UserError, section
from plm_core.corpus.document import Document
from plm_core.corpus.lines import COMPRESSIONS
from plm_core.corpus.parts import in_parts, least_bytes
from plm_core.corpus.quarantine import Quarantined, Refused
from plm_core.corpus.records import READABLE, Record, format_of, records
from plm_core.corpus.sources.fields import documents_of
from plm_core.corpus.sources.source import Records

MOST_PARTS = 64
"""The most parts of a source: if ids are not in file order, all are open while they are joined."""


@section
class Folder(Records):
    """One document per text file, or per record of the other formats, in the order of the sorted file names."""

    license: str | None = None
    """The licence of the text, for the dataset card."""
    pattern: str = "**/*"
    """Which files are read, such as ``**/*.jsonl.gz``; ``**`` matches any subfolders."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            raise ValueError(f"pattern: found {self.pattern!r}; expected a pattern of names in `input`")
        parts = PurePosixPath(self.pattern).parts
        if not parts or any("**" in part and part != "**" for part in parts):
            raise ValueError(f"pattern: found {self.pattern!r}; expected ** alone between slashes, such as **/*.jsonl")

    def origin(self) -> dict[str, Any]:
        """The folder and its licence."""
        return {"input": self.input, "license": self.license or "not stated"}

    def parts(self) -> list["Files"]:
        """The source in parts of some files; UserError if none can be read."""
        files = _files(Path(self.input), self.pattern)
        sizes = [file.stat().st_size for file in files]
        return [Files(self, files[some]) for some in in_parts(sizes, least_bytes(sum(sizes), MOST_PARTS))]

    def read(self) -> Iterator[Document | Quarantined]:
        """As ``Source.read``; also UserError if no file can be read."""
        return Files(self, _files(Path(self.input), self.pattern)).read()


@dataclass(frozen=True)
class Files:
    """Some of the files of a folder."""

    folder: Folder
    files: Sequence[Path]

    def read(self) -> Iterator[Document | Quarantined]:
        """As ``Source.read``."""
        return documents_of(_records(self.files, Path(self.folder.input), self.folder.max_record_bytes), self.folder)


def _records(files: Iterable[Path], root: Path, limit: int) -> Iterator[tuple[str, str, Record]]:
    """Each record with its place and the id that it has if it states none."""
    for file in files:
        name = file.name if file == root else file.relative_to(root).as_posix()
        if file != root and not (target := file.resolve()).is_relative_to(root.resolve()):
            detail = f"a link to {target}; expected a file in the folder: copy it there, or make it a source of its own"
            yield str(file), name, Record(1, Refused("outside_folder", detail))
            continue
        if file.suffix.lower() in COMPRESSIONS:
            # Compressing a file must not move its documents to another side of the split.
            name = name[: -len(file.suffix)]
        for record in records(file, limit):
            default_id = name if isinstance(record.content, str) else f"{name}#{record.number}"
            yield f"{file}:{record.number}", default_id, record


def _files(root: Path, pattern: str) -> list[Path]:
    if not root.exists():
        raise UserError(f"{root}: does not exist; expected a file or folder with {READABLE} (input of the source)")
    found = [root] if root.is_file() else sorted(path for path in root.glob(pattern) if path.is_file())
    files = [file for file in found if format_of(file)]
    if not files:
        where = "input of the source" if root.is_file() else f"input of the source, and pattern {pattern!r}"
        raise UserError(f"{root}: nothing to read in it; expected {READABLE} ({where})")
    for link in sorted(path for path in root.rglob("*") if path.is_symlink() and path.is_dir()):
        warnings.warn(f"{link}: a link to a folder, which is not followed; make it a source of its own", stacklevel=3)
    if others := sorted({_kind(file) for file in found if not format_of(file)}):
        what = f"{len(found) - len(files)} files of other kinds are not read ({', '.join(others)})"
        warnings.warn(f"{root}: {what}; only {READABLE} are", stacklevel=3)
    return files


def _kind(file: Path) -> str:
    """The apparent kind of a file; for a compressed one, of its content."""
    last = -2 if file.suffix.lower() in COMPRESSIONS else -1
    return "".join(file.suffixes[last:]) or file.name
