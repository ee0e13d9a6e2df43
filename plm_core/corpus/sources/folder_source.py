"""A team's own text: a file, or the files of a folder, in the formats of ``plm_core/corpus/records.py``.

The source ``folder``. A record that cannot be used does not stop it, but is yielded as ``Quarantined``.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from plm_core.config import UserError, join_names, section
from plm_core.corpus.document import Document, in_parts
from plm_core.corpus.records import COMPRESSIONS, FORMATS, READABLE, Record, format_of, records
from plm_core.corpus.removals import Quarantined, Refused
from plm_core.corpus.sources.source import Records, documents_of

MOST_PARTS = 64
"""The most parts of a source: if ids are not in file order, all are open while they are joined."""
EVERY = "**/*"


@section
class Folder(Records):
    """One document per text file, or per record of the other formats, in the order of the sorted file names."""

    license: str | None = None
    """The licence of the text, for the dataset card."""
    pattern: str = EVERY
    """Which files are read, such as ``**/*.jsonl.gz``; ``**`` matches any subfolders."""
    formats: list[Literal["txt", "jsonl", "csv", "tsv", "parquet"]] = field(default_factory=list)
    """Which formats are read, compressed or not; []: all."""
    delimiter: str = ","
    """What separates the columns of a .csv, one character such as ``;``."""
    split: str | int | None = None
    """What a document is in a .txt: a line (``lines``), what is between blank lines (``blank_lines``), or a number of
    lines, up to twice as many, ending at a blank line; null: the whole file. Its id is the file's name and the line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            raise ValueError(f"pattern: found {self.pattern!r}; expected a pattern of names in `input`")
        parts = PurePosixPath(self.pattern).parts
        if not parts or any("**" in part and part != "**" for part in parts):
            raise ValueError(f"pattern: found {self.pattern!r}; expected ** alone between slashes, such as **/*.jsonl")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter: found {self.delimiter!r}; expected one character, such as ;")
        if self.split not in (None, "lines", "blank_lines") and not (isinstance(self.split, int) and self.split > 0):
            raise ValueError(f"split: found {self.split!r}; expected lines, blank_lines, a number of lines, or null")

    def origin(self) -> dict[str, Any]:
        """The folder and its licence."""
        return {"input": self.input, "license": self.license or "not stated"}

    def files(self) -> list[Path]:
        """What is read, in the order of the names; warnings say what else is there. UserError if there is nothing."""
        root = Path(self.input)
        if not root.exists():
            raise UserError(f"{root}: does not exist; expected a file or a folder (input of the source)")
        formats = {f".{kind}" for kind in self.formats} or set(FORMATS)
        files, hidden, others = [], [], []
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_symlink() and path.is_dir():
                warnings.warn(f"{path}: a link to a folder, which is not followed; make it a source", stacklevel=2)
            if not path.is_file():
                continue
            if name := _hidden(path, root):
                hidden.append(name)
            elif not (kind := format_of(path)):
                others.append(_kind(path))
            elif kind in formats:
                files.append(path)
        if self.pattern != EVERY and root.is_dir():  # which may also lead through links
            matching = sorted(path for path in root.glob(self.pattern) if path.is_file())
            files = [path for path in matching if format_of(path) in formats and not _hidden(path, root)]
        if hidden:
            names = join_names(sorted(set(hidden)))
            warnings.warn(f"{root}: {len(hidden)} hidden files are not read ({names})", stacklevel=2)
        if others and root.is_dir():
            what = f"files of other kinds are not read ({join_names(sorted(set(others)))}). {READABLE}"
            warnings.warn(f"{root}: {len(others)} {what}", stacklevel=2)
        if not files:
            where = f"input of the source, pattern {self.pattern!r}, formats {join_names(sorted(formats))}"
            raise UserError(f"{root}: nothing to read in it ({where}). {READABLE}")
        return files

    def parts(self) -> list["Files"]:
        """The source in parts of some files; UserError if none can be read."""
        files = self.files()
        sizes = [file.stat().st_size for file in files]
        names = [file.name for file in files]
        return [Files(self, files[some]) for some in in_parts(sizes, sum(sizes), names, MOST_PARTS)]

    def read(self) -> Iterator[Document | Quarantined]:
        return Files(self, self.files()).read()


@dataclass(frozen=True)
class Files:
    """Some of the files of a folder."""

    folder: Folder
    files: Sequence[Path]

    def read(self) -> Iterator[Document | Quarantined]:
        return documents_of(self._records(), self.folder)

    def _records(self) -> Iterator[tuple[str, str, Record]]:
        """Each record with its place and its default id."""
        given = self.folder
        root = Path(given.input)
        for file in self.files:
            name = file.name if file == root else file.relative_to(root).as_posix()
            if file != root and not (target := file.resolve()).is_relative_to(root.resolve()):
                detail = f"a link to {target}; expected a file in the folder: copy it there, or make it its own source"
                yield str(file), name, Record(1, Refused("outside_folder", detail))
                continue
            if file.suffix.lower() in COMPRESSIONS:
                # Compressing a file must not move its documents to another side of the split.
                name = name[: -len(file.suffix)]
            for record in records(file, given.max_record_bytes, delimiter=given.delimiter, split=given.split):
                whole = isinstance(record.content, str) and given.split is None
                yield f"{file}:{record.number}", name if whole else f"{name}#{record.number}", record


def _hidden(path: Path, root: Path) -> str | None:
    """The part of a path below a folder that hides a file, such as a copy that an editor has made."""
    return next((part for part in path.relative_to(root).parts if part.startswith(".")), None)


def _kind(file: Path) -> str:
    """The apparent kind of a file; for a compressed one, of its content."""
    last = -2 if file.suffix.lower() in COMPRESSIONS else -1
    return "".join(file.suffixes[last:]) or file.name
