"""A survey of a folder of text: what a recipe for it needs to know. Used by the command init."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean

from plm_core.config import UserError, from_dict
from plm_core.corpus.clean import CleanConfig, clean_document
from plm_core.corpus.document import Document
from plm_core.corpus.language import UNDETERMINED, LanguageConfig, language_of
from plm_core.corpus.quarantine import Quarantined
from plm_core.corpus.records import READABLE, format_of, records
from plm_core.corpus.sources.folder import Folder

LIMIT = 100_000_000
"""The bytes of the longest record, as in a source's default."""
LOOKED_AT = 500
"""The number of documents to examine for fields, language and cleaning: the first of each format, then every k-th."""
ALL_FILES = "**/*"


@dataclass(frozen=True)
class Survey:
    """The result of a survey."""

    pattern: str
    """Which files are read."""
    text_field: str
    id_field: str | None
    """A field that every record has, with a different value in each; None: there is none."""
    documents: int
    quarantined: int
    """The number of records that are not documents."""
    bytes: int
    """The UTF-8 bytes of the texts."""
    characters: int
    """The number of distinct characters in the texts."""
    sample: list[Document]
    """A sample of the documents, from all over the folder."""

    def languages(self) -> Counter[str]:
        """The languages of the sample, most frequent first."""
        found = Counter(language_of(document.text, 0.5)[0] for document in self.sample)
        return Counter(dict(found.most_common()))

    def kept(self, config: CleanConfig) -> float:
        """The share of the sample's bytes that cleaning keeps."""
        cleaned = [clean_document(document, config).document for document in self.sample]
        left = sum(len(document.text.encode()) for document in cleaned if document)
        return left / max(1, sum(len(document.text.encode()) for document in self.sample))

    def common_language(self) -> LanguageConfig | None:
        """The setting to keep the one language of nearly all of the sample; None if there is no such language."""
        language, count = self.languages().most_common(1)[0]
        known = language != UNDETERMINED and count >= 0.95 * len(self.sample)
        return LanguageConfig((language,)) if known else None


def survey(root: Path) -> Survey:
    """Survey a folder, or a file.

    Raises:
        UserError: there is nothing to read in it, or no record has a text.
        OSError: a file cannot be read.
    """
    pattern, text_field, id_fields = _described(root)
    count = 0
    bad = 0
    size = 0
    characters = set[str]()
    sample = list[Document]()
    values: dict[str, set[object]] = {name: set() for name in id_fields}
    step = 1
    source = {"input": str(root), "pattern": pattern, "text_field": text_field}
    for found in from_dict(Folder, source, "init").read():
        if isinstance(found, Quarantined):
            bad += 1
            continue
        if count % step == 0:
            sample.append(found)
            if len(sample) == 2 * LOOKED_AT:
                sample = sample[::2]
                step = step * 2
        count += 1
        size += len(found.text.encode())
        characters |= set(found.text)
        for name in id_fields:
            values[name].add(found.metadata.get(name))
    unique = [name for name, seen in values.items() if len(seen) == count and not seen & {None, ""}]
    if not count:
        raise UserError(f"{root}: no document in it; expected {READABLE}, with a text in each row")
    return Survey(pattern, text_field, next(iter(unique), None), count, bad, size, len(characters), sample)


def _described(root: Path) -> tuple[str, str, Sequence[str]]:
    """The files to read, the field of the text, and the fields that may be ids."""
    kinds: dict[str, list[Mapping[str, object]]] = defaultdict(list)
    sizes: Counter[str] = Counter()
    for file in [root] if root.is_file() else sorted(root.rglob("*")):
        if file.is_file() and (kind := format_of(file)):
            sizes[kind] += file.stat().st_size
            if kind != ".txt" and len(kinds[kind]) < LOOKED_AT:
                kinds[kind] += [row for row in _rows(file) if row]
    main, _ = (sizes.most_common(1) or [(".txt", 0)])[0]
    rows = kinds.get(main, [])
    text_field = _text_field(rows)
    others = [kind for kind in sizes if kind not in (main, ".txt") and text_field not in _names(kinds[kind])]
    # Text files can be combined with any others; tables whose text has another name cannot.
    pattern = f"**/*{main}*" if others or (main == ".txt" and len(sizes) > 1) else ALL_FILES
    return pattern, text_field, [name for name in _names(rows) if name.lower() in ("id", "key", "uid", "uuid", "url")]


def _rows(file: Path) -> list[Mapping[str, object]]:
    first = islice(records(file, LIMIT), LOOKED_AT)
    return [record.content for record in first if isinstance(record.content, Mapping)]


def _names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _text_field(rows: Sequence[Mapping[str, object]]) -> str:
    """The field called text, or otherwise the one with the longest texts."""
    lengths = {
        name: mean(len(value) if isinstance(value := row.get(name), str) else 0 for row in rows)
        for name in _names(rows)
    }
    return "text" if not lengths or lengths.get("text") else max(lengths, key=lambda name: lengths[name])
