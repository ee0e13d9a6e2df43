"""A survey of folders of text, on which the command init bases the parameters that it proposes."""

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from statistics import mean, median
from typing import Any

from plm_core.config import UserError, from_dict, join_names
from plm_core.corpus.cleaning import CleanConfig, clean_document
from plm_core.corpus.document import Document
from plm_core.corpus.language import UNDETERMINED, LanguageConfig, language_of
from plm_core.corpus.records import DELIMITERS, READABLE, Record, format_of, records
from plm_core.corpus.removals import Quarantined, Refused
from plm_core.corpus.sources.folder_source import Files, Folder

LIMIT = 100_000_000
"""The bytes of the longest record, the default of a source."""
LOOKED_AT = 500
"""The number of documents to examine for fields, language and cleaning: the first of each format, then every k-th."""
IDS = ("id", "key", "uid", "uuid", "url", "no")
"""Names of fields, in lowercase, that may be ids."""
SHORTEST_TEXT = 20
"""A field whose values have fewer characters on average is not proposed as the text, unless its name is ``text``."""
FEW, LARGE = 20, 10_000
"""Fewer text files than this, of more bytes than this on average, are divided into documents."""
SHORTEST, PIECE = 200, 1000
"""The fewest characters of such a document: in the median, and on average when it is made of several lines."""
BEGINNING = 1 << 20
"""Characters of each text that are looked at for this."""


@dataclass(frozen=True)
class Surveyed:
    """What a source holds."""

    source: Folder
    documents: int
    quarantined: int
    bytes: int
    characters: set[str]
    sample: list[Document]
    """Every ``step``-th document."""
    step: int

    def languages(self) -> Counter[str]:
        """The languages of the sample, most frequent first."""
        counts = Counter(language_of(document.text, 0.5)[0] for document in self.sample)
        return Counter(dict(counts.most_common()))

    def kept(self, config: CleanConfig) -> float:
        """The share of the sample's bytes that cleaning keeps."""
        cleaned = [clean_document(document, config).document for document in self.sample]
        left = sum(len(document.text.encode()) for document in cleaned if document)
        return left / max(1, sum(len(document.text.encode()) for document in self.sample))

    def common_language(self) -> LanguageConfig | None:
        """The setting that keeps the language of nearly all of the sample; None if there is no such language."""
        language, count = self.languages().most_common(1)[0]
        common = language != UNDETERMINED and count >= 0.95 * len(self.sample)
        return LanguageConfig((language,)) if common else None


def survey(root: Path) -> list[Surveyed]:
    """The sources for a folder, or a file: one for all formats, or one for each group of formats that needs its own.

    Raises:
        UserError: there is nothing to read in it, or no record has a text, or a file is a pointer of Git LFS.
        OSError: a file cannot be read.
    """
    kinds = defaultdict[str, list[Path]](list)
    for file in Folder(str(root)).files():
        kinds[format_of(file) or ""].append(file)
    groups: dict[str, dict[str, Any]] = {}
    # Text files have no fields and go with any others: they come last.
    for kind in sorted(kinds, key=lambda kind: (kind == ".txt", -_bytes(kinds[kind]))):
        files = kinds[kind]
        ids, given = ([], {"split": _split(files)}) if kind == ".txt" else _fields(files, root)
        if not given:
            continue
        # Ids that are unique within a format may repeat in another.
        without = next((name for name, group in groups.items() if not group["ids"]), "text")
        name = kind if ids else given.get("text_field", without)
        old = groups.setdefault(name, {"formats": [], "files": [], "ids": ids})
        groups[name] = old | given | {"formats": [*old["formats"], kind[1:]], "files": [*old["files"], *files]}
    surveys = []
    for group in groups.values():
        files, ids = group.pop("files"), group.pop("ids")
        group |= {"input": str(root)} | ({} if len(group["formats"]) < len(kinds) else {"formats": []})
        surveys.append(survey_files(from_dict(Folder, group, "init"), files, ids))
        if not surveys[-1].documents:
            what = f"{len(files)} files are left out ({join_names(file.name for file in files)})"
            warnings.warn(f"{root}: {what}; {surveys.pop().quarantined} unreadable records", stacklevel=2)
    if not surveys:
        raise UserError(f"{root}: no document in it; expected a text in each row. {READABLE}")
    return surveys


def survey_files(source: Folder, files: Sequence[Path], id_fields: Sequence[str] = ()) -> Surveyed:
    """Read these files of a source. Its ids come from the first of ``id_fields`` whose values all differ."""
    count = bad = size = 0
    characters = set[str]()
    sample = list[Document]()
    values: dict[str, set[object]] = {name: set() for name in id_fields}
    step = 1
    for record in Files(source, files).read():
        if isinstance(record, Quarantined):
            if record.reason == "lfs_pointer":
                raise UserError(f"{record.place}: {record.detail}")
            bad += 1
            continue
        if count % step == 0:
            sample.append(record)
            if len(sample) == 2 * LOOKED_AT:
                sample = sample[::2]
                step = step * 2
        count += 1
        size += len(record.text.encode())
        characters |= set(record.text)
        for name in id_fields:
            values[name].add(record.metadata.get(name))
    unique = [name for name, seen in values.items() if len(seen) == count and not seen & {None, ""}]
    source = replace(source, id_field=next(iter(unique), source.id_field))
    return Surveyed(source, count, bad, size, characters, sample, step)


def join_surveys(parts: Sequence[Surveyed]) -> Surveyed:
    """Join several into one with the source of the first; its sample has the same share of each."""
    step = max(part.step for part in parts)
    return Surveyed(
        parts[0].source,
        sum(part.documents for part in parts),
        sum(part.quarantined for part in parts),
        sum(part.bytes for part in parts),
        set[str]().union(*(part.characters for part in parts)),
        [document for part in parts for document in part.sample[:: step // part.step]],
        step,
    )


def _bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _fields(files: Sequence[Path], root: Path) -> tuple[list[str], dict[str, Any]]:
    """The fields of tables that may be ids, and how their text is read; nothing, with a warning, if there is no
    text."""

    read: dict[str, list[Record]] = {}
    for mark in DELIMITERS if format_of(files[0]) == ".csv" else ",":
        every = chain.from_iterable(records(file, LIMIT, delimiter=mark) for file in files)
        read[mark] = list(islice(every, LOOKED_AT))
    delimiter = max(read, key=lambda mark: sum(isinstance(record.content, Mapping) for record in read[mark]))
    rows = [record.content for record in read[delimiter] if isinstance(record.content, Mapping)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    lengths = {name: mean(len(v) if isinstance(v := row.get(name), str) else 0 for row in rows) for name in names}
    text = "text" if lengths.get("text") else max(lengths, key=lambda name: lengths[name], default="")
    if text == "text" or lengths.get(text, 0) >= SHORTEST_TEXT:
        ids = [name for name in names if name.lower() in IDS]
        return ids, {"text_field": text} | ({"delimiter": delimiter} if delimiter != "," else {})
    bad = next((f"{files[0]}: {r.content}" for r in read[delimiter] if isinstance(r.content, Refused)), "")
    why = bad or f"no field of text among {join_names(names) or 'no rows'}"
    warnings.warn(f"{root}: {len(files)} {format_of(files[0])} files are left out; {why}", stacklevel=3)
    return [], {}


def _split(files: Sequence[Path]) -> str | int | None:
    """How to split a few large text files, as their beginnings suggest; None if they are not such files."""
    if len(files) >= FEW or _bytes(files) <= LARGE * len(files):
        return None
    lines: list[int] = []
    blocks: list[int] = []
    for file in files:
        before = read = 0
        for record in records(file, LIMIT, split="lines"):  # without the blank ones
            size = len(record.content) if isinstance(record.content, str) else 0
            lines.append(size)
            blocks += [] if record.number == before + 1 > 1 else [0]
            blocks[-1] += size
            before = record.number
            if (read := read + size) > BEGINNING:
                break
    for name, sizes in (("blank_lines", blocks), ("lines", lines)):
        if len(sizes) >= FEW and median(sizes) >= SHORTEST:
            return name
    number = min(math.ceil(PIECE / max(1, mean(lines or [0]))), len(lines) // (2 * FEW))
    return number or ("lines" if len(lines) >= FEW else None)
