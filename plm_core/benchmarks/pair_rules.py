"""Minimal pairs from a team's own text, by rule: a passage as written, and the same with one change.

Used by ``pairs.py``. Nothing has to be labelled, because the text as written counts as right. What is changed, and to
what, depends on the hash of the passage: the same text gives the same pairs. The rules on agreement are for English: in
other languages they would change words that look like English ones (German *was*). ``mentions`` is for languages that
write spaces between words and capitals in names; ``word_order`` is for any; without spaces, each character is a word.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Literal

from plm_core.corpus.document import Document
from plm_core.corpus.normalize import WORD, paragraphs, words_of
from plm_core.files import sha256_text

SHORTEST, LONGEST = 6, 40
"""The words of a sentence: a shorter one gives too little context, a longer one costs more than it is worth."""
LONGEST_PASSAGE = 60
"""Words from one mention to the next."""
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


def changed(document: Document, rule: Callable[[Paragraphs], Iterator[Texts]]) -> Iterator[Texts]:
    """The pairs that a rule makes from a document."""
    return rule([END.split(" ".join(text.split())) for text in paragraphs(document.text)])


def verb_agreement(text: Paragraphs) -> Iterator[Texts]:
    """A verb whose number does not agree with its subject."""
    for sentence, words in _sentences(text):
        found = [i for i in range(1, len(words)) if words[i] in OTHER and words[i] not in DETERMINERS]
        if SUBJUNCTIVE.isdisjoint(map(str.lower, words)):
            plain = [i for i in found if words[i - 1].lower() not in INFINITIVE]
            yield from _one(sentence, words, [(i, [OTHER[words[i]]]) for i in plain])


def determiner_agreement(text: Paragraphs) -> Iterator[Texts]:
    """`these` before a singular; `this` before a plural, which is recognised by its s."""
    for sentence, words in _sentences(text):
        found = [i for i in range(len(words) - 1) if words[i] in DETERMINERS]
        sure = [i for i in found if words[i] == "this" or words[i + 1].endswith("s")]
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
        for found in MENTION.finditer(sentence):
            behind.setdefault(_place(sentence, found), {})[found[0]] = None
    for sentences in text:
        first: dict[str, int] = {}
        until = [0, *accumulate(len(sentence.split()) for sentence in sentences)]
        for number, sentence in enumerate(sentences):
            for found in MENTION.finditer(sentence):
                if found[0] not in first:
                    first[found[0]] = number
                    continue
                begins = first[found[0]]
                if not SHORTEST <= until[number + 1] - until[begins] <= LONGEST_PASSAGE:
                    continue
                before = " ".join([*sentences[begins:number], sentence[: found.start()]])
                good = " ".join(sentences[begins : number + 1])
                others = [name for name in behind[_place(sentence, found)] if name not in good]
                if others:
                    yield good, before + others[_draw(good, len(others))] + good[len(before) + len(found[0]) :]


Rule = Literal["verb_agreement", "determiner_agreement", "word_order", "mentions"]
ENGLISH: tuple[Rule, ...] = ("verb_agreement", "determiner_agreement")
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
        said = iter([*words[:place], *put, *words[place + len(put) :]])
        yield sentence, WORD.sub(lambda _: next(said), sentence)


def _plain(words: Iterable[str]) -> bool:
    """Whether all words could be anywhere in a sentence: no capitals, punctuation or digits."""
    return all(word.isalpha() and word == word.lower() for word in words)


def _place(sentence: str, found: re.Match[str]) -> tuple[str, bool]:
    """The word before a mention, and whether it is a number."""
    return sentence[: found.start()].split()[-1], found[0][-1].isdigit()


def _draw(text: str, many: int) -> int:
    """A number below ``many``, determined by the text alone."""
    return int(sha256_text(text)[:16], 16) % many
