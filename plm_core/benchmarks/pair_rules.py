"""Minimal pairs from a team's own text, by rule: a passage as it was written, and the same with one thing changed.

Used by ``pairs.py``. Nobody has to label anything, for what somebody wrote is taken for right. What is changed and to
what is drawn by the hash of the passage: the same text gives the same pairs. The rules on agreement are for English:
of another language they spoil words that look like English ones (German *was*). ``mentions`` is for languages that
write spaces between words and capitals in names; ``word_order`` reads any, one character as a word where there are no
spaces.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Literal

from plm_core.corpus.document import Document
from plm_core.corpus.normalize import WORD, paragraphs, words_of
from plm_core.files import sha256_text

SHORTEST, LONGEST = 6, 40
"""Words of a sentence: a shorter one gives no ground to tell, a longer one costs more than it tells."""
LONGEST_PASSAGE = 60
"""Words from one mention to the next."""
END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*(?!$)")
NUMBERS = (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"), ("this", "these"))
"""One, and many."""
OTHER = {word: other for pair in NUMBERS for word, other in (pair, pair[::-1])}
DETERMINERS = NUMBERS[-1]
INFINITIVE = {"to", "not", "will", "would", "shall", "should", "can", "could", "may", "might", "must"}
"""Behind these words a verb's form says nothing of its subject."""
SUBJUNCTIVE = {"if", "though"}
"""In a sentence with these words it may be either."""
RUN = 4
"""So many neighbouring words are turned round: of fewer, the other order may be right as well."""
MENTION = re.compile(r"(?<=[a-z,;] )(?:[A-Z][a-z]+(?: [A-Z][a-z]+)*|\$?\d[\d,.]*\d\b)")
"""A name, which has capitals within a sentence, or a number of two digits or more."""

Paragraphs = Sequence[list[str]]
"""The sentences of a document by paragraph."""
Texts = tuple[str, str]
"""A passage as it was written, and changed."""


def changed(document: Document, rule: Callable[[Paragraphs], Iterator[Texts]]) -> Iterator[Texts]:
    """What a rule makes of a document."""
    return rule([END.split(" ".join(text.split())) for text in paragraphs(document.text)])


def verb_agreement(text: Paragraphs) -> Iterator[Texts]:
    """A verb in the number that its subject has not."""
    for sentence, words in _sentences(text):
        found = [i for i in range(1, len(words)) if words[i] in OTHER and words[i] not in DETERMINERS]
        if SUBJUNCTIVE.isdisjoint(map(str.lower, words)):
            plain = [i for i in found if words[i - 1].lower() not in INFINITIVE]
            yield from _one(sentence, words, [(i, [OTHER[words[i]]]) for i in plain])


def determiner_agreement(text: Paragraphs) -> Iterator[Texts]:
    """`these` before what is one; `this` before what is many, which is told by its s."""
    for sentence, words in _sentences(text):
        found = [i for i in range(len(words) - 1) if words[i] in DETERMINERS]
        sure = [i for i in found if words[i] == "this" or words[i + 1].endswith("s")]
        yield from _one(sentence, words, [(i, [OTHER[words[i]]]) for i in sure])


def word_order(text: Paragraphs) -> Iterator[Texts]:
    """Four neighbouring words turned round."""
    for sentence, words in _sentences(text):
        runs = [(i, words[i : i + RUN][::-1]) for i in range(len(words) - RUN + 1)]
        yield from _one(sentence, words, [run for run in runs if _plain(run[1]) and run[1] != run[1][::-1]])


def mentions(text: Paragraphs) -> Iterator[Texts]:
    """A name or number that the passage has before, exchanged for another one of the document.

    It is one that stands behind the same word elsewhere, so that what is next to it does not give it away, and that the
    passage does not have. The passage goes from the sentence of the first mention in a paragraph to that of this one.
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
    """The sentence with one of the changes: from a place on, these words for as many. Nothing where there is none."""
    if changes:
        place, put = changes[_draw(sentence, len(changes))]
        said = iter([*words[:place], *put, *words[place + len(put) :]])
        yield sentence, WORD.sub(lambda _: next(said), sentence)


def _plain(words: Iterable[str]) -> bool:
    """Whether all are words that any place in a sentence could have: no capitals, marks or digits."""
    return all(word.isalpha() and word == word.lower() for word in words)


def _place(sentence: str, found: re.Match[str]) -> tuple[str, bool]:
    """The word before a mention, and whether it is a number."""
    return sentence[: found.start()].split()[-1], found[0][-1].isdigit()


def _draw(text: str, many: int) -> int:
    """A number below ``many``, by the text alone."""
    return int(sha256_text(text)[:16], 16) % many
