"""Texts know their bytes token by token, windows cover every token once, sums are divided once."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plm_core.corpus.normalize import normalize
from plm_core.evaluation.likelihood import named
from plm_core.evaluation.likelihood.document_scores import Likelihood, Text, sum_scores, tokenized, windows
from plm_core.objectives import QUANTITIES

LENGTHS = st.integers(1, 199)
MIXED = "Ünïcödé 漢字 🚀\n\nThe  people of 1789"


def test_a_likelihood_of_a_lossy_tokenizers_tokens_has_a_name_of_its_own(tokenizers):
    for kind, tokenizer in tokenizers.items():
        for quantity in QUANTITIES:
            expected = quantity if kind != "wordpiece" else f"lossy_{quantity}"
            assert named(quantity, tokenizer) == expected


def test_wordpiece_words_begin_at_pieces_without_prefix(tokenizers):
    tokenizer = tokenizers["wordpiece"]
    spelled = tokenized("so kasi,\nlobitumo so", tokenizer)
    pieces = [tokenizer.piece(i) for i in spelled.ids]
    assert spelled.starts == [not piece.startswith("##") for piece in pieces]
    assert sum(spelled.starts) == 5
    assert False in spelled.starts


def test_likelihood_sums_are_divided_once():
    """A short document does not weigh as much as a long one."""
    whole = sum_scores([Likelihood(8.0, 2, 4), Likelihood(2.0, 3, 96)])
    assert (whole.nats, whole.tokens, whole.bytes) == (10.0, 5, 100)
    assert whole.nats_per_token == 2.0
    assert whole.bits_per_byte == pytest.approx(10 / math.log(2) / 100)
    assert whole.perplexity == pytest.approx(math.exp(2))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "bytelevel"])
@given(text=st.text(max_size=37) | st.text("abo ▁\n<0x>Aé漢", max_size=37))
def test_likelihood_counts_utf8_bytes(tokenizers, kind, text):
    spelled = tokenized(text, tokenizers[kind])
    assert spelled.ids == tokenizers[kind].encode(text)
    # Also where a token is lossy: what it drops counts as text that was said.
    assert spelled.bytes == len(normalize(text).encode()) or not spelled.ids
    assert spelled.ended


@given(most=st.integers(0, 40))
def test_excerpt_bytes_match_its_tokens(tokenizer, most):
    """Where a cut goes through no character, what the tokens decode to has as many bytes."""
    whole = tokenized(MIXED, tokenizer)
    cut = whole.first(most)
    decoded = tokenizer.decode(cut.ids)
    assert cut.ids == whole.ids[:most]
    assert cut.bytes == len(decoded.encode()) or decoded.endswith("\ufffd")
    assert cut.ended is (most >= len(whole.ids))
    assert cut.bytes + sum(whole.sizes[most:]) == len(MIXED.encode())


def test_an_excerpt_has_no_end_where_the_document_has_none(device):
    text = Text([8, 9, 10], [1, 2, 3], [True, False, True])
    assert text.sequence(device.device).tolist() == [3, 8, 9, 10, 3]
    assert text.first(2).sequence(device.device).tolist() == [3, 8, 9]
    assert text.first(3) is text.first(None) is text


def test_words_begin_at_spaces_and_around_line_ends(tokenizer):
    text = "so kasi\nlobitumo so"
    spelled = tokenized(text, tokenizer)
    words: list[str] = []
    for token, start in zip(spelled.ids, spelled.starts, strict=True):
        piece = tokenizer.piece(token).replace("▁", " ")
        words = [*words, piece] if start else [*words[:-1], words[-1] + piece]
    assert words == ["so", " kasi", "\n", "lobitumo", " so"]


@given(length=LENGTHS, context=st.integers(1, 37), stride=st.integers(1, 37))
def test_windows_predict_every_position_once_and_fit_the_context(length, context, stride):
    assume(stride <= context)
    spans = list(windows(length, context, stride))
    predicted = [position for _, first, stop in spans for position in range(first, stop)]
    assert predicted == list(range(length))
    assert all(0 <= start <= first < stop <= length for start, first, stop in spans)
    assert {stop - start for start, _, stop in spans} == {min(length, context)}


@given(length=LENGTHS, context=st.integers(1, 37), stride=st.integers(1, 37))
def test_window_predictions_see_at_least_context_minus_stride(length, context, stride):
    assume(stride <= context)
    for start, first, stop in windows(length, context, stride):
        assert start == 0 or first - start >= context - stride
        assert stop <= length
