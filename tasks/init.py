"""The command init: parameters for a folder of text. ``python -m tasks.init FOLDER [--add] [--yes | --dry-run]``.

It looks at the folder, shows what it would change in ``params.yaml``, and changes it after confirmation.
"""

import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from typer import Argument, Option

from plm_core.benchmarks.pairs import ENGLISH
from plm_core.config import UserError, from_dict
from plm_core.corpus.clean import CleanConfig
from plm_core.corpus.normalize import paragraphs
from plm_core.corpus.sources.folder import Folder
from plm_core.corpus.survey import Surveyed, joined, survey, surveyed
from plm_core.files import atomic_text
from plm_core.shared import paths
from tasks.runtime.stage import main
from tasks.settings import params
from tasks.settings.editing import edited

FEWEST = 20
"""The least number of documents; with fewer, a split may have none."""
FEW = 300
"""With fewer documents, a larger share is held out, or there would be too few to evaluate on."""
KEPT = 0.9
"""The share of the text that cleaning rules must keep; otherwise they were made for other text."""
BYTES_A_PIECE = 1200
PIECES = (512, 16384)
"""Bytes of text per piece of the vocabulary, as in the demo, and the smallest and largest vocabulary."""
EPOCHS, BYTES_A_TOKEN, FEWEST_STEPS = 4, 3, 40
"""How often pretraining reads the text at most (Muennighoff et al. 2023), bytes per token, and the fewest steps."""
MOST_STEPS = 1500
"""The most steps when text is added, about those of the demo."""


def init(
    folder: Annotated[Path, Argument(help="Read the text in this folder.")],
    add: Annotated[bool, Option("--add", help="Keep the sources that there are.")] = False,
    agreed: Annotated[bool, Option("--yes", help="Write the parameters without asking.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show the parameters.")] = False,
) -> None:
    """Propose the parameters for a folder of text, and write them after confirmation.

    Raises:
        UserError: the folder holds nothing to read, or too few documents, or is to be added and is a source already.
    """
    folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    if not folder.exists():
        raise UserError(f"{folder}: missing; expected a folder of text")
    old = _sources(folder) if add else []
    found = survey(folder)
    kept = [surveyed(source, source.files()) for source in old]
    if (count := joined([*found, *kept]).documents) < FEWEST:
        raise UserError(
            f"{folder}: holds {count} documents; expected at least {FEWEST}: add some (a .txt is one document, unless "
            "`split` of its source divides it by lines or blank lines, and it has many)"
        )
    for each in [*found, *kept]:
        _describe(each)
    before = params.PARAMS.read_text(encoding="utf-8")
    after = edited(before, proposed(folder, found, kept, add))
    _show(before.splitlines(), after.splitlines())
    if dry_run or not (agreed or _asked()):
        print(f"{params.PARAMS}: nothing was written")
        return
    atomic_text(params.PARAMS, after)
    print(f"{params.PARAMS}: written. Next: `plm run` (how long it takes depends on `training.steps`)")


def proposed(
    folder: Path, found: Sequence[Surveyed], kept: Sequence[Surveyed] = (), add: bool = False
) -> dict[str, Any]:
    """The parameters to change, by dotted name, for what the folder holds and the sources that are kept beside it."""
    whole = joined([*found, *kept])
    sources = _named(folder, found, params.section_names("sources") if add else [])
    changes: dict[str, Any] = {f"sources.{name}": source for name, source in sources.items()}
    changes = (changes if add else {"sources": sources}) | _cleaning(whole) | _sizes(whole, add) | _pairs(whole)
    if not add:
        changes |= {
            "mixture.shares": None,
            "examples": {"next": {"input": paths.CORPUS.as_posix()}},
            "finetune.tasks": ["next"],
            "finetune.transfers": [],
            "fewshot.tasks": None,
            "fewshot.prompts": {},
            "evaluate.prompts": None,
            "evaluate.cloze": None,
        }
    return {name: value for name, value in changes.items() if _value(name) != value}


def _sources(folder: Path) -> list[Folder]:
    """The sources in the parameters that are folders; UserError if this folder is one of them."""
    found: list[Folder] = []
    for name in params.section_names("sources"):
        given = dict(params.read(f"sources.{name}"))
        if given.pop("reader", None) == "folder":
            found.append(from_dict(Folder, given, f"sources.{name}"))
            if Path(found[-1].input).resolve() == folder.resolve():
                raise UserError(f"sources.{name}: reads {folder} already; expected a folder that is no source yet")
    return found


def _named(folder: Path, found: Sequence[Surveyed], taken: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The sections of sources, without what is the default."""
    base = re.sub(r"[^\w-]+", "-", folder.stem).strip("-") or "mine"
    default = asdict(Folder(found[0].source.input))
    sections: dict[str, dict[str, Any]] = {}
    for each in found:
        stem = f"{base}-{each.source.formats[0]}" if len(found) > 1 else base
        names = (stem if n == 1 else f"{stem}-{n}" for n in itertools.count(1))
        stated = {name: value for name, value in asdict(each.source).items() if value != default[name]}
        section = {"reader": "folder", "input": folder.as_posix()} | stated
        sections[next(name for name in names if name not in taken)] = section
    return sections


def _cleaning(found: Surveyed) -> dict[str, Any]:
    """Without the rules that remove much of this text, and with the language that nearly all of it is in."""
    rules = params.section("clean", CleanConfig)
    language = found.common_language()
    changes: dict[str, Any] = {}
    for level in ("paragraphs", "documents"):
        if found.kept(CleanConfig(**{level: getattr(rules, level)})) < KEPT:
            changes[f"clean.{level}"] = {}
    same = rules.languages and language and rules.languages.keep == language.keep
    if language and not same and found.kept(CleanConfig(languages=language)) >= KEPT:
        changes["clean.languages"] = asdict(language) | {"keep": list(language.keep)}
    elif not same:
        changes["clean.languages"] = None
    return changes


def _sizes(found: Surveyed, more: bool) -> dict[str, Any]:
    """The splits, the vocabulary and the steps that suit this amount of text; with ``more`` text, also more steps."""
    changes: dict[str, Any] = {"split.valid": 0.15, "split.test": 0.2} if found.documents < FEW else {}
    least = max(PIECES[0], 300 + 2 * len(found.characters))
    pieces = 1 << max(1, found.bytes // BYTES_A_PIECE).bit_length() - 1
    changes["tokenizer.vocab_size"] = max(least, min(PIECES[1], pieces))
    for name in params.names("models"):
        section = f"pretrain.{name}"
        training = params.read(f"{section}.training")
        context = _value(f"{section}.model.context")
        if {"steps", "batch"} <= training.keys() and context:
            now = training["steps"]
            positions = EPOCHS * found.bytes / BYTES_A_TOKEN
            steps = max(FEWEST_STEPS, int(positions / training["batch"] / context) // 10 * 10)
            if (steps := min(steps, max(now, MOST_STEPS) if more else now)) != now:
                changes[f"{section}.training.steps"] = steps
                changes[f"{section}.training.optimizer.warmup_steps"] = steps // 5
    return changes


def _pairs(found: Surveyed) -> dict[str, Any]:
    """Without the rules for English pairs, if most of the text is not English."""
    if found.languages().most_common(1)[0][0] == "en":
        return {}
    names = [f"pairs.{name}.rules" for name in params.read("pairs")]
    left = {name: [rule for rule in _value(name) or [] if rule not in ENGLISH] for name in names}
    return {name: rules for name, rules in left.items() if rules}


def _value(name: str) -> Any:
    """The current value of a parameter; None if there is none."""
    try:
        return params.read(name)
    except UserError:
        return None


def _describe(found: Surveyed) -> None:
    source = found.source
    formats = f" (.{', .'.join(source.formats)})" if source.formats else ""
    each = median(len(paragraphs(document.text)) for document in found.sample) if found.sample else 0
    languages = ", ".join(f"{name} {count / len(found.sample):.0%}" for name, count in found.languages().items())
    print(
        f"{source.input}{formats}: {found.documents:,} documents, {found.bytes / 1e6:.2f} MB, {found.quarantined} "
        f"unreadable records; a median of {each:g} paragraphs per document; languages: {languages}"
    )


def _show(old: Sequence[str], new: Sequence[str]) -> None:
    """Print the removed and the added lines."""
    print(f"--- {params.PARAMS}\n+++ {params.PARAMS}")
    for change, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if change != "equal":
            print(f"@@ -{i + 1},{j - i} +{k + 1},{m - k} @@")
            print(*(f"-{line}" for line in old[i:j]), *(f"+{line}" for line in new[k:m]), sep="\n")


def _asked() -> bool:
    if not sys.stdin.isatty():
        print("No terminal to ask on; use --yes to write without asking.")
        return False
    return input(f"Write this to {params.PARAMS}? [y/N] ").strip().lower() in ("y", "yes")


if __name__ == "__main__":
    main(init)
