"""What is measured of a vocabulary, counted again by hand."""

from collections import Counter

import pytest

from plm_core.text.tokenizers import NOT_LEARNED, PIECES, UNK
from plm_core.text.vocabulary_quality import RARE, comparison_words, measure, sample, split_word

UNSEEN = ["Kasi so lobitumo. \u2603 so\n", "ba\n\nbala  漢"]


@pytest.mark.parametrize("kind", NOT_LEARNED)
def test_vocabulary_statistics_match_counting(tokenizers, documents, kind):
    tokenizer, trained_on = tokenizers[kind], [d.text for d in documents]
    measured = measure(tokenizer, trained_on, UNSEEN)
    ids = [i for text in UNSEEN for i in tokenizer.encode(text)]
    assert measured.vocab_size == 307
    assert measured.bytes_per_token == sum(len(text.encode()) for text in UNSEEN) / len(ids)
    assert measured.fertility == len(ids) / 8
    assert measured.unknown_rate == ids.count(UNK) / len(ids)
    assert (measured.unknown_rate > 0) == (kind == "wordpiece")
    spelled = [tokenizer.encode(f" {word}") for word in ("Kasi", "so", "lobitumo", "so", "ba", "bala", "漢")]
    assert measured.fragmented_share == sum(len(ids) > 1 or UNK in ids for ids in spelled) / 7
    counts = Counter(i for text in trained_on for i in tokenizer.encode(text))
    entries = range(len(PIECES), 307)
    assert measured.rare_share == pytest.approx(sum(counts[i] < RARE for i in entries) / 300)
    assert measured.unused_share == pytest.approx(sum(counts[i] == 0 for i in entries) / 300)
    assert 0 < measured.unused_share < measured.rare_share < 1


def test_a_sample_is_all_or_spans_the_whole():
    texts = [f"{i:05d}" for i in range(37)]
    assert sample(texts, 37 * 5) == texts
    part = sample(texts, 50)
    assert part == texts[::4]
    assert sample([]) == []


def test_comparison_words_are_the_longest_and_the_rarest():
    texts = ["aaaa bbb bbb cc dd d1e, ff", "gg hh hh ii jj"]
    assert comparison_words(texts, 4) == ["aaaa", "bbb", "dd", "ii"]
    assert comparison_words(["one"], 8) == ["one"]
    assert comparison_words(["12 ..."]) == []
    assert comparison_words([f"{'x' * 5000} {'y' * 40} so"]) == ["y" * 40, "so"]


def test_a_word_is_split_as_within_a_sentence(tokenizers):
    assert split_word(tokenizers["bpe"], "so").startswith("▁")
    assert split_word(tokenizers["bytelevel"], "so").startswith("▁")
    assert not split_word(tokenizers["wordpiece"], "so").startswith("#")
    assert split_word(tokenizers["unigram"], "\u2603") == "▁ <0xE2> <0x98> <0x83>"
