"""Byte-level BPE is GPT-2's: the same pattern, the same byte alphabet, the same ids from the same merges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel as Library
from transformers import GPT2TokenizerFast

from plm_core.corpus.normalize import normalize
from plm_core.text.bytelevel import FIRST, LETTERS
from plm_core.text.special import PIECES


@pytest.fixture(scope="module")
def ours(tokenizers):
    return tokenizers["bytelevel"]


def test_the_bytes_have_the_letters_of_the_library():
    assert len(set(LETTERS)) == 256
    assert set(LETTERS) == set(Library.alphabet())
    assert LETTERS[ord("A")] == "A"
    assert LETTERS[ord(" ")] == "Ġ"
    assert LETTERS[ord("\n")] == "Ċ"
    ((found, _),) = Library(add_prefix_space=False, use_regex=False).pre_tokenize_str("".join(map(chr, range(256))))
    assert found == "".join(LETTERS[byte] for byte in "".join(map(chr, range(256))).encode())


def test_every_byte_has_an_entry_and_the_rest_are_merges(ours):
    import json

    assert tuple(ours.tokens[:263]) == FIRST
    merges = json.loads(ours.data)["model"]["merges"]
    assert ["".join(pair) for pair in merges] == ours.tokens[263:]


@given(text=st.text() | st.text("ab .,'stlveRM 17\n\t漢é🚀"))
def test_gpt2_gives_the_same_ids_from_our_merges(ours, text):
    assert original(ours).encode(normalize(text)) == ours.encode(text)


_made = {}


def original(ours):
    """GPT-2's tokenizer from transformers, with our vocabulary and merges, and none of our special tokens."""
    import json

    if not _made:
        model = json.loads(ours.data)["model"]
        _made["it"] = GPT2TokenizerFast(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    return _made["it"]


def test_gpt2_gives_the_same_ids_of_documents_and_reads_them_back(ours, documents):
    theirs = original(ours)
    for document in documents:
        ids = ours.encode(document.text)
        assert theirs.encode(document.text) == ids
        assert theirs.decode(ids) == ours.decode(ids) == document.text


def test_pieces_are_shown_as_text_or_as_bytes(ours):
    shown = [ours.piece(i) for i in ours.encode("so kasi\n漢")]
    assert "".join(shown) == "so▁kasi\n<0xE6><0xBC><0xA2>"
    assert tuple(ours.piece(i) for i in range(7)) == PIECES


def test_words_begin_at_spaces_and_around_line_ends(ours):
    text = "so kasi\n\nlobi, so"
    found = ours.spell(text)
    words: list[bytes] = []
    rest = text.encode()
    for size, start in zip(found.sizes, found.starts, strict=True):
        part, rest = rest[:size], rest[size:]
        words = [*words, part] if start else [*words[:-1], words[-1] + part]
    assert b"".join(words) == text.encode()
    assert [word for word in words if word.strip()] == [b"so", b" kasi", b"lobi,", b" so"]
