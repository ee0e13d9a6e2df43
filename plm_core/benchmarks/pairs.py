"""Minimal pairs: two texts that differ in one thing; to a good language model the right one is more likely.

Written by the stage pairs, read by minimal-pairs and text-baseline. Linzen, Dupoux and Goldberg 2016, "Assessing the
Ability of LSTMs to Learn Syntax-Sensitive Dependencies"; Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic
Minimal Pairs for English". A paradigm is a set of pairs that test the same thing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import PositiveInt

from plm_core.benchmarks.pair_rules import RULES, Rule, changed
from plm_core.benchmarks.sources.rows import file_rows, text_of
from plm_core.config import UserError, section
from plm_core.corpus.document import read_documents
from plm_core.corpus.quarantine import Refused
from plm_core.corpus.records import COMPRESSIONS
from plm_core.files import RESTORE, sha256_text

OWN, BLIMP = LAYOUTS = (("good", "bad", "paradigm", "group"), ("sentence_good", "sentence_bad", "UID", "group"))
"""The fields of a team's own files, and of BLiMP's; the last two of each may be missing."""
FILES = tuple(f".jsonl{packing}" for packing in ("", *COMPRESSIONS))


@section
class PairsConfig:
    """A section of ``pairs`` in the parameters."""

    input: str
    """The input, tracked by DVC: JSON lines, plain or compressed, or a folder of such files, with ``good`` and ``bad``
    and optionally ``paradigm`` and ``group`` (what pairs have in common, such as their document); or the layout of
    BLiMP. With ``rules``: documents, as one of the files of the splits."""
    rules: list[Rule] = field(default_factory=list)
    """The rules that make pairs from the documents' sentences: the sentence as written, and the same with one change.
    []: the input holds pairs."""
    each: PositiveInt | None = None
    """At most this many pairs of each paradigm, always the same ones; null: all."""
    prefix: str = ""
    """A prefix to each text. A model of running text has rarely seen a single sentence at the start of a document;
    after a neutral one, and a line break, it can show what it knows."""


@dataclass(frozen=True)
class Pair:
    """Two texts, of which the first is right."""

    id: str
    """Unique in its set."""
    good: str
    bad: str
    paradigm: str = ""
    """"" if there is only one."""
    group: str = ""
    """What it has in common with others, such as the document that it was made from; "" if nothing is known."""

    @property
    def sha256(self) -> str:
        """The digest of the texts, which shows that two evaluations saw the same pair."""
        return sha256_text(f"{self.good}\x1f{self.bad}")


def read_pairs(name: str, config: PairsConfig) -> tuple[list[Pair], list[str]]:
    """The pairs of the section ``pairs.<name>``, and one line for each that was left out of a published set.

    Raises:
        UserError: a row is not a pair, its texts are the same (in BLiMP seven are, and are left out), or there is no
            pair at all; the message names the place.
        OSError: a file cannot be read.
    """
    path = Path(config.input)
    left_out: list[str] = []
    every = list(_made(path, config.rules) if config.rules else _written(path, left_out))
    if not every:
        expected = "sentences to which its rules apply" if config.rules else "at least one line"
        raise UserError(f"{path}: gives no pair; expected {expected}, or another input (pairs.{name})")
    kept: dict[str, list[Pair]] = {}
    for pair in sorted(every, key=lambda pair: sha256_text(pair.id)):  # so that a new one displaces few
        kept.setdefault(pair.paradigm, []).append(pair)
    ids = {pair.id for some in kept.values() for pair in some[: config.each]}
    chosen = (pair for pair in every if pair.id in ids)
    return [replace(pair, good=config.prefix + pair.good, bad=config.prefix + pair.bad) for pair in chosen], left_out


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write one JSON object per line: id, good, bad, paradigm and group."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for pair in pairs:
            file.write(json.dumps(asdict(pair), ensure_ascii=False) + "\n")


def load_pairs(path: Path) -> list[Pair]:
    """The pairs of a file that ``write_pairs`` wrote, in order.

    Raises:
        UserError: the file is missing or damaged; the message names the line.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro pairs`)")
    found = []
    with path.open("rb") as file:  # a line ends at \n alone
        for number, line in enumerate(file, start=1):
            try:
                found.append(Pair(**json.loads(line.decode("utf-8"))))
            except (ValueError, TypeError) as error:
                raise UserError(f"{path}:{number}: {error!r}; expected a pair; {RESTORE}") from error
    return found


def _made(path: Path, rules: Iterable[Rule]) -> Iterator[Pair]:
    for document in read_documents(path):
        for rule in dict.fromkeys(rules):
            for number, (good, bad) in enumerate(changed(document, RULES[rule])):
                yield Pair(f"{document.id}#{rule}-{number}", good, bad, rule, document.id)


def _written(path: Path, left_out: list[str]) -> Iterator[Pair]:
    files = sorted(p for p in path.iterdir() if p.name.endswith(FILES)) if path.is_dir() else [path]
    left_out += [f"{file}: hidden, and not read" for file in files if file.name.startswith(".")]
    files = [file for file in files if not file.name.startswith(".")]
    if not files or not files[0].name.endswith(FILES):
        raise UserError(f"{path}: is not a file of pairs; expected {' or '.join(FILES)}, or a folder of such files")
    counts = Counter[str]()
    for file in files:
        for place, row in file_rows(file):
            try:
                if isinstance(row, Refused):
                    raise row
                layout = next((names for names in LAYOUTS if names[0] in row or names[1] in row), OWN)
                good, bad = layout[:2]
                if missing := [name for name in (good, bad) if name not in row]:
                    raise Refused("missing_column", f"no field {missing[0]!r}; expected {good!r} and {bad!r}")
                texts = [text_of(row[name], name) for name in (good, bad)]
                texts += [text_of(row[name], name) if row.get(name) else "" for name in layout[2:]]
            except Refused as refused:
                raise UserError(f"{place}: {refused.detail}") from None
            good, bad, paradigm, group = texts
            name = paradigm or "pair"
            counts[name] += 1
            if good != bad:
                yield Pair(f"{name}-{counts[name]}", good, bad, paradigm, group)
            elif layout is BLIMP:
                left_out.append(f"{place}: both sentences of the pair are the same")
            else:
                raise UserError(f"{place}: good and bad are the same; expected two texts that differ")
