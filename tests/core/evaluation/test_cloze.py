"""A blank is one MASK, filled by the likeliest pieces, and the space before it belongs to them."""

import pytest
import torch

from plm_core.evaluation.cloze import fill
from plm_core.sections.evaluation import around
from plm_core.text.special import CLS, MASK, PIECES, SEP


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "bytelevel"])
@torch.no_grad()
def test_a_blank_is_filled_by_the_likeliest_pieces_in_order(make_bert, tokenizers, device, kind):
    tokenizer = tokenizers[kind]
    model = make_bert(vocab_size=307, context=37).eval()
    found = fill(model, tokenizer, "so ___ kasi", device)
    ids = [CLS, *tokenizer.encode("so"), MASK, *tokenizer.encode(" kasi"), SEP]
    logits = model.logits(model(torch.tensor([ids]))[0, ids.index(MASK)])[len(PIECES) :]
    assert len(found) == 5
    for (piece, probability), place in zip(found, logits.argsort(descending=True), strict=False):
        assert piece == tokenizer.piece(int(place) + len(PIECES))
        assert probability == pytest.approx(float(logits.softmax(dim=0)[place]), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a ___ b", ("a", " b")),
        ("a___.", ("a", ".")),
        ("___", ("", "")),
        ("a  ___\n", ("a ", "\n")),
    ],
)
def test_a_blank_hides_the_space_before_it(text, parts):
    assert around(text) == parts


@pytest.mark.parametrize(("text", "blanks"), [("", 0), ("no blank", 0), ("a ___ and ___", 2)])
def test_a_text_without_exactly_one_blank_is_an_error(text, blanks):
    with pytest.raises(ValueError, match=f"^cloze: '{text}' has {blanks} blanks; expected exactly one ___"):
        around(text)


def test_a_text_longer_than_the_context_is_an_error(make_bert, tokenizer, device):
    model = make_bert(vocab_size=307, context=13)
    with pytest.raises(ValueError, match="tokens long; expected at most the model's context, 13"):
        fill(model, tokenizer, "so kasi lobitumo so kasi lobitumo ___", device)
    fill(model, tokenizer, "so ___", device)
