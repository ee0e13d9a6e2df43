"""Blanks are filled by the likeliest pieces; variety, repetition and copying of texts, by hand and by their rules."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plm_core.configs.stage_configs import around_blank
from plm_core.evaluation.samples import copied_shares, distinct, fill, repetition_share
from plm_core.evaluation.train_overlap import ngrams_in_text
from plm_core.text.tokenizers import CLS, MASK, PIECES, SEP


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "bytelevel"])
@torch.no_grad()
def test_a_blank_is_filled_by_the_likeliest_pieces_in_order(make_bert, tokenizers, device, kind):
    tokenizer = tokenizers[kind]
    model = make_bert(vocab_size=307, context=37).eval()
    filled = fill(model, tokenizer, "so ___ kasi", device)
    ids = [CLS, *tokenizer.encode("so"), MASK, *tokenizer.encode(" kasi"), SEP]
    logits = model.logits(model(torch.tensor([ids]))[0, ids.index(MASK)])[len(PIECES) :]
    assert len(filled) == 5
    for (piece, probability), place in zip(filled, logits.argsort(descending=True), strict=False):
        assert piece == tokenizer.piece(int(place) + len(PIECES))
        assert probability == pytest.approx(float(logits.softmax(dim=0)[place]), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a ___ b", ("a", " b")),
        ("___", ("", "")),
        ("a  ___\n", ("a ", "\n")),
    ],
)
def test_a_blank_hides_the_space_before_it(text, parts):
    assert around_blank(text) == parts


@pytest.mark.parametrize(("text", "blanks"), [("", 0), ("no blank", 0), ("a ___ and ___", 2)])
def test_a_text_without_exactly_one_blank_is_an_error(text, blanks):
    with pytest.raises(ValueError, match=f"^cloze: '{text}' has {blanks} blanks; expected exactly one ___"):
        around_blank(text)


def test_a_text_longer_than_the_context_is_an_error(make_bert, tokenizer, device):
    model = make_bert(vocab_size=307, context=13)
    with pytest.raises(ValueError, match="tokens long; expected at most the model's context, 13"):
        fill(model, tokenizer, "so kasi lobitumo so kasi lobitumo ___", device)
    fill(model, tokenizer, "so ___", device)


def among(training):
    return lambda wanted: ngrams_in_text(wanted, training)


WORDS = st.lists(st.sampled_from("abc"), max_size=30).map(" ".join)


def test_sample_measures_by_hand():
    texts = ["The cat saw the cat", "a  dog\nsaw THE cat"]
    assert distinct(texts, 1) == 5 / 10  # the cat saw a dog
    assert distinct(texts, 2) == 5 / 8  # (the cat) three times, (saw the) twice
    assert repetition_share(texts, 2) == (1 / 4 + 0) / 2  # (the cat) stands in the first before
    assert copied_shares(texts, among(["He saw the cat there", "and a dog"]), 3) == (2 / 6, 3)
    assert copied_shares(texts, among(["A dog: saw the cat."]), 3) == (4 / 6, 5)  # marks are no words
    assert copied_shares(["a b c d e f", "b c"], among(["x a b c y", "b c d e"]), 3) == (3 / 4, 5)


def test_sample_words_without_spaces_are_characters():
    assert distinct(["我爱我家", "我 家"], 1) == 3 / 6
    assert repetition_share(["我家我家我家"], 2) == 1 - 2 / 5


@pytest.mark.parametrize("texts", [[], [""], ["one two"]])
def test_sample_measures_of_short_texts_are_nan(texts):
    assert math.isnan(distinct(texts, 3))
    assert math.isnan(repetition_share(texts, 3))
    share, longest = copied_shares(texts, among(["one two three"]), 3)
    assert math.isnan(share)
    assert longest == 0


@given(texts=st.lists(WORDS, max_size=4), n=st.integers(1, 4))
def test_sample_shares_lie_between_0_and_1(texts, n):
    for value in (distinct(texts, n), repetition_share(texts, n)):
        assert math.isnan(value) or 0 <= value <= 1
    share, longest = copied_shares(texts, among(texts[::-1]), n)
    most = max((len(text.split()) for text in texts), default=0)
    assert (share, longest) == ((1.0, most) if most >= n else (pytest.approx(math.nan, nan_ok=True), 0))
    alone, _ = copied_shares(texts, among([]), n)
    assert math.isnan(alone) or alone == 0
