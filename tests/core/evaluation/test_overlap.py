"""The overlap of examples with training text, by hand and against a search word by word."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus.document import Document, write_documents
from plm_core.corpus.part_pool import Pool
from plm_core.evaluation.train_overlap import ngrams_in_any_part, ngrams_in_text, overlaps, search_in, search_part

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=12).map(" ".join), max_size=4)


def among(training):
    return lambda wanted: ngrams_in_text(wanted, training)


@pytest.mark.parametrize(
    ("example", "words", "share"),
    [
        (["a b c d"], 4, 1 / 2),  # a b c stands, b c d does not
        (["A, b -- C!"], 3, 1.0),  # case and punctuation are none of it
        (["c d"], 2, 1.0),  # shorter than three words: as a whole
        (["b d"], 2, 0.0),
        (["a b c a b c"], 6, 2 / 4),  # an n-gram counts as often as it stands there
        (["a b", "c d e"], 5, 2 / 2),  # no n-gram of both texts: b c d would not stand
        (["", "a b c"], 3, 1.0),
        (["..."], 0, 0.0),
        ([], 0, 0.0),
    ],
)
def test_overlap_by_hand(example, words, share):
    sizes, shares = overlaps([["z"], example], among(["x a b c y", "c d e"]), 3)
    assert (sizes[1], shares[1]) == (words, share)
    assert (sizes[0], shares[0]) == (1, 0.0)


def test_overlap_with_no_text_is_zero():
    assert overlaps([["a b c"]], among([]), 2)[1].tolist() == [0.0]
    assert overlaps([], among(["a b c"]), 2)[1].tolist() == []


@given(examples=st.lists(TEXTS, max_size=4), training=TEXTS, n=st.integers(1, 5))
def test_overlap_share_matches_naive_search(examples, training, n):
    def grams(text, k):
        words = re.findall(r"\w+", text)
        return [tuple(words[i : i + k]) for i in range(len(words) - k + 1)] if words else []

    def share(texts):
        hits = []
        for text in texts:
            k = min(n, len(text.split()))
            seen = {gram for other in training for gram in grams(other, k)}
            hits += [gram in seen for gram in grams(text, k)]
        return sum(hits) / len(hits) if hits else 0.0

    sizes, shares = overlaps(examples, among(training), n)
    assert sizes.tolist() == [sum(len(text.split()) for text in texts) for texts in examples]
    np.testing.assert_allclose(shares, [share(texts) for texts in examples])


@given(examples=st.lists(TEXTS, max_size=4), training=TEXTS)
def test_overlap_does_not_depend_on_parts(tmp_path_factory, examples, training):
    folder = tmp_path_factory.mktemp("parts")

    def search(wanted):
        results = []
        for i, text in enumerate(training):
            write_documents(folder / f"{i}.parquet", [Document("x", text, "s")])
            results.append(folder / str(i))
            results[-1].mkdir()
            search_part((wanted, (folder / f"{i}.parquet", slice(0, 1))), results[-1])
        return ngrams_in_any_part(wanted, results)

    for in_parts, whole in zip(overlaps(examples, search, 3), overlaps(examples, among(training), 3), strict=True):
        np.testing.assert_array_equal(in_parts, whole)


def test_overlap_search_of_other_samples_does_not_reuse_results(tmp_path):
    """As when a stage is killed, and goes on with other samples."""
    write_documents(tmp_path / "x.parquet", [Document("x", "a b c d", "s")])
    for examples, share in ((["a b c"], 1.0), (["x y z"], 0.0), (["b c d", "c d e"], 0.5)):
        search = search_in(tmp_path / "x.parquet", Pool(tmp_path / "pool", 1))
        assert overlaps([examples], search, 3)[1].tolist() == [share]
