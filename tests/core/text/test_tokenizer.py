"""Tokens say the text exactly, and no text can say a special token."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plm_core.config import BadInput, from_dict
from plm_core.corpus.normalize import normalize
from plm_core.text.special import BOS, CLS, EOS, MASK, PAD, PIECES, SEP, UNK
from plm_core.text.tokenizer import BYTES_AND_SPECIALS, MODEL_FILE, Tokenizer, TokenizerConfig, train_tokenizer

KINDS = ("bpe", "unigram")
AWKWARD = st.lists(
    st.sampled_from(
        [*PIECES, "<0x41>", "<0x00>", "\u2581", "_", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\ufffd", "a", "é"]
    )
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text() | AWKWARD)
@example(text=" leading and trailing ")
@example(text="\n\n\n")
@example(text="\ufeffBOM, \u200b zero width, \U0001f469\u200d\U0001f680 joined, \ue000 private, \U0010ffff last")
def test_decode_of_encode_is_the_normal_form(tokenizers, kind, text):
    assert tokenizers[kind].decode(tokenizers[kind].encode(text)) == normalize(text)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text() | AWKWARD)
def test_no_text_spells_a_special_token(tokenizers, kind, text):
    assert all(i >= len(PIECES) for i in tokenizers[kind].encode(text))


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text(max_size=20), max_size=7), threads=st.sampled_from([1, 2]))
def test_many_at_once_are_encoded_as_one_by_one(tokenizers, kind, texts, threads):
    one_by_one = [tokenizers[kind].encode(text) for text in texts]
    assert [ids.tolist() for ids in tokenizers[kind].encode_batch(texts, threads)] == one_by_one


@given(first=st.text(max_size=20), second=st.text(max_size=20))
def test_special_tokens_between_texts_are_left_out_of_the_text(tokenizer, first, second):
    ids = [BOS, *tokenizer.encode(first), SEP, MASK, PAD, *tokenizer.encode(second), CLS, EOS, UNK]
    assert tokenizer.decode(ids) == normalize(first) + normalize(second)


@given(ids=st.lists(st.integers(0, 306), max_size=20))
def test_any_sequence_of_tokens_decodes_to_text_that_can_be_written(tokenizer, ids):
    tokenizer.decode(ids).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_their_ids_and_the_vocabulary_its_size(tokenizers, kind):
    assert tuple(tokenizers[kind].piece(i) for i in range(7)) == PIECES
    assert tokenizers[kind].vocab_size == 307


@pytest.mark.parametrize("kind", KINDS)
def test_equal_texts_give_equal_bytes(documents, kind):
    config = TokenizerConfig(kind, 299)
    first, second = (train_tokenizer((d.text for d in documents), config) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_that_is_too_large_is_refused_with_the_largest_that_works(documents, kind):
    texts = [d.text for d in documents[:5]]
    with pytest.raises(
        BadInput, match=r"^tokenizer\.vocab_size: 50000 is more than .* expected at most (\d+)"
    ) as caught:
        train_tokenizer(texts, TokenizerConfig(kind, 50_000))
    largest = int(str(caught.value).split("at most ")[1].split(",")[0])
    assert len(train_tokenizer(texts, TokenizerConfig(kind, largest))) > 0
    with pytest.raises(BadInput, match=r"^tokenizer\.vocab_size"):
        train_tokenizer(texts, TokenizerConfig(kind, largest + 1))


@pytest.mark.parametrize("size", [-1, 0, 99, BYTES_AND_SPECIALS])
def test_a_vocabulary_below_the_bytes_is_refused_by_name(size):
    with pytest.raises(BadInput, match=rf"^tokenizer\.vocab_size: {size} is too small; expected more than 264"):
        from_dict(TokenizerConfig, {"kind": "bpe", "vocab_size": size}, "tokenizer")


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_below_the_alphabet_is_refused_with_the_smallest_that_works(kind):
    texts = ["".join(chr(0x4E00 + i) for i in range(199)) * 3]
    with pytest.raises(BadInput, match=r"^tokenizer\.vocab_size: 270 is too small; expected at least \d+") as caught:
        train_tokenizer(texts, TokenizerConfig(kind, 270, character_coverage=1.0))
    smallest = int(str(caught.value).split("at least ")[1])
    assert len(train_tokenizer(texts, TokenizerConfig(kind, smallest, character_coverage=1.0))) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], ["", " \n "]])
def test_an_empty_corpus_is_refused(kind, texts):
    with pytest.raises(BadInput, match=r"^tokenizer"):
        train_tokenizer(texts, TokenizerConfig(kind, 300))


def test_a_file_that_is_no_tokenizer_of_the_project_is_named(tmp_path, tokenizer):
    path = tmp_path / MODEL_FILE
    with pytest.raises(BadInput, match=r"tokenizer\.model: missing"):
        Tokenizer(path)
    for damaged in (b"", b"\xff" * 99, tokenizer.path.read_bytes().replace(b"<mask>", b"<MASK>")):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match=r"tokenizer\.model"):
            Tokenizer(path)


def test_text_that_cannot_be_written_is_refused(tokenizer):
    with pytest.raises(
        BadInput, match=r"^text: holds half a surrogate pair at character 4; expected text that is valid"
    ):
        tokenizer.encode("abc\ud800")
