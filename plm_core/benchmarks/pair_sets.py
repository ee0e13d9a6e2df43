"""Minimal pairs: two texts that differ in one thing; to a good language model the right one is more likely.

Linzen, Dupoux and Goldberg 2016, "Assessing the Ability of LSTMs to Learn Syntax-Sensitive Dependencies"; Warstadt et
al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English". A paradigm is a set of pairs that test the
same thing. Pairs are read, or made by rule from a team's own text: a passage as written, which counts as right, and the
same with one change, drawn by the hash of the passage.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from plm_core.benchmarks.example_readers import file_rows, read_lines, text_of, write_lines
from plm_core.config import UserError, section
from plm_core.corpus.document import Document, read_documents
from plm_core.corpus.normalize import WORD, paragraphs, words_of
from plm_core.corpus.records import COMPRESSIONS
from plm_core.corpus.removals import Refused
from plm_core.shared.files import RESTORE, sha256_text

OWN, BLIMP = LAYOUTS = (("good", "bad", "paradigm", "group"), ("sentence_good", "sentence_bad", "UID", "group"))
"""The fields of a team's own files, and of BLiMP's; the last two of each may be missing."""
Rule = Literal["verb_agreement", "determiner_agreement", "word_order", "mentions"]
ENGLISH: tuple[Rule, ...] = ("verb_agreement", "determiner_agreement")
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
    per_paradigm: PositiveInt | None = None
    """At most this many pairs of each paradigm, always the same ones; null: all."""
    prefix: str = ""
    """What is put before each text. A model of running text has rarely seen a single sentence at the start of a
    document; after a neutral one, and a line break, it can show what it knows."""


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
        UserError: a row is not a pair, its texts are the same (seven pairs of BLiMP are like this, and are left out),
            or there is no pair at all; the message names the place.
        OSError: a file cannot be read.
    """
    path = Path(config.input)
    left_out: list[str] = []
    every: list[Pair] = []
    if config.rules:
        for document in read_documents(path):
            for rule in dict.fromkeys(config.rules):
                for number, (good, bad) in enumerate(pairs_from(document, RULES[rule])):
                    every.append(Pair(f"{document.id}#{rule}-{number}", good, bad, rule, document.id))
    else:
        every += _written(path, left_out)
    if not every:
        expected = "sentences to which its rules apply" if config.rules else "at least one line"
        raise UserError(f"{path}: gives no pair; expected {expected}, or another input (pairs.{name})")
    kept: dict[str, list[Pair]] = {}
    for pair in sorted(every, key=lambda pair: sha256_text(pair.id)):  # so that a new one displaces few
        kept.setdefault(pair.paradigm, []).append(pair)
    ids = {pair.id for some in kept.values() for pair in some[: config.per_paradigm]}
    chosen = (pair for pair in every if pair.id in ids)
    return [replace(pair, good=config.prefix + pair.good, bad=config.prefix + pair.bad) for pair in chosen], left_out


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write JSON lines: id, good, bad, paradigm and group."""
    write_lines(path, map(asdict, pairs))


def load_pairs(path: Path) -> list[Pair]:
    """The pairs of a file that ``write_pairs`` wrote, in order.

    Raises:
        UserError: the file is missing or damaged; the message names the line.
    """
    return read_lines(path, "pairs", lambda fields, _: Pair(**fields), f"a pair; {RESTORE}")


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


# The rules.

SHORTEST, LONGEST = 6, 40
"""The fewest and the most words of a sentence: shorter ones give too little context, longer ones cost too much."""
LONGEST_PASSAGE = 60
"""The most words of a passage that reaches from one mention to the next."""
END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*(?!$)")
NUMBERS = (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"), ("this", "these"))
"""Singular and plural."""
OTHER = {word: other for pair in NUMBERS for word, other in (pair, pair[::-1])}
DETERMINERS = NUMBERS[-1]
INFINITIVE = {"to", "not", "will", "would", "shall", "should", "can", "could", "may", "might", "must"}
"""After these words the form of a verb does not depend on its subject."""
SUBJUNCTIVE = {"if", "though"}
"""In a sentence with these words either form may be right."""
RUN = 4
"""This many neighbouring words are reversed: with fewer, the other order may be right as well."""
MENTION = re.compile(r"(?<=[a-z,;] )(?:[A-Z][a-z]+(?: [A-Z][a-z]+)*|\$?\d[\d,.]*\d\b)")
"""A name, which is capitalised within a sentence, or a number of two digits or more."""

Paragraphs = Sequence[list[str]]
"""The sentences of a document by paragraph."""
Texts = tuple[str, str]
"""A passage as written, and changed."""


def pairs_from(document: Document, rule: Callable[[Paragraphs], Iterator[Texts]]) -> Iterator[Texts]:
    """The pairs that a rule makes from a document."""
    return rule([END.split(" ".join(text.split())) for text in paragraphs(document.text)])


def verb_agreement(text: Paragraphs) -> Iterator[Texts]:
    """A verb whose number does not agree with its subject."""
    for sentence, words in _sentences(text):
        verbs = [i for i in range(1, len(words)) if words[i] in OTHER and words[i] not in DETERMINERS]
        if SUBJUNCTIVE.isdisjoint(map(str.lower, words)):
            plain = [i for i in verbs if words[i - 1].lower() not in INFINITIVE]
            yield from _one(sentence, words, [(i, [OTHER[words[i]]]) for i in plain])


def determiner_agreement(text: Paragraphs) -> Iterator[Texts]:
    """`these` before a singular; `this` before a plural, which is recognised by its s."""
    for sentence, words in _sentences(text):
        determiners = [i for i in range(len(words) - 1) if words[i] in DETERMINERS]
        sure = [i for i in determiners if words[i] == "this" or words[i + 1].endswith("s")]
        yield from _one(sentence, words, [(i, [OTHER[words[i]]]) for i in sure])


def word_order(text: Paragraphs) -> Iterator[Texts]:
    """Four neighbouring words reversed."""
    for sentence, words in _sentences(text):
        runs = [(i, words[i : i + RUN][::-1]) for i in range(len(words) - RUN + 1)]
        yield from _one(sentence, words, [run for run in runs if _plain(run[1]) and run[1] != run[1][::-1]])


def mentions(text: Paragraphs) -> Iterator[Texts]:
    """A name or number that occurs earlier in the passage, replaced by another one of the document.

    The other one follows the same word elsewhere, so that its neighbour does not give it away, and does not occur in
    the passage. The passage goes from the sentence of the first mention in a paragraph to that of this one.
    """
    behind: dict[tuple[str, bool], dict[str, None]] = {}
    for sentence in chain.from_iterable(text):
        for mention in MENTION.finditer(sentence):
            behind.setdefault(_place(sentence, mention), {})[mention[0]] = None
    for sentences in text:
        first: dict[str, int] = {}
        until = [0, *accumulate(len(sentence.split()) for sentence in sentences)]
        for number, sentence in enumerate(sentences):
            for mention in MENTION.finditer(sentence):
                if mention[0] not in first:
                    first[mention[0]] = number
                    continue
                begins = first[mention[0]]
                if not SHORTEST <= until[number + 1] - until[begins] <= LONGEST_PASSAGE:
                    continue
                before = " ".join([*sentences[begins:number], sentence[: mention.start()]])
                good = " ".join(sentences[begins : number + 1])
                others = [name for name in behind[_place(sentence, mention)] if name not in good]
                if others:
                    yield good, before + others[_draw(good, len(others))] + good[len(before) + len(mention[0]) :]


RULES: dict[Rule, Callable[[Paragraphs], Iterator[Texts]]] = {
    "verb_agreement": verb_agreement,
    "determiner_agreement": determiner_agreement,
    "word_order": word_order,
    "mentions": mentions,
}


def _sentences(text: Paragraphs) -> Iterator[tuple[str, list[str]]]:
    """Each sentence that is neither too short nor too long, and its words."""
    for sentence in chain.from_iterable(text):
        words = words_of(sentence)
        if SHORTEST <= len(words) <= LONGEST:
            yield sentence, words


def _one(sentence: str, words: Sequence[str], changes: Sequence[tuple[int, Sequence[str]]]) -> Iterator[Texts]:
    """The sentence with one of the changes: at a place, these words replace as many. Nothing if there is no change."""
    if changes:
        place, put = changes[_draw(sentence, len(changes))]
        replaced = iter([*words[:place], *put, *words[place + len(put) :]])
        yield sentence, WORD.sub(lambda _: next(replaced), sentence)


def _plain(words: Iterable[str]) -> bool:
    """Whether all words could be anywhere in a sentence: no capitals, punctuation or digits."""
    return all(word.isalpha() and word == word.lower() for word in words)


def _place(sentence: str, mention: re.Match[str]) -> tuple[str, bool]:
    """The word before a mention, and whether it is a number."""
    return sentence[: mention.start()].split()[-1], mention[0][-1].isdigit()


def _draw(text: str, many: int) -> int:
    """A number below ``many``, determined by the text alone."""
    return int(sha256_text(text)[:16], 16) % many
