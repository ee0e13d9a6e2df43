"""A token store holds every document once, in order, whatever its shards and its width."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from plm_core.config import UserError
from plm_core.text.token_store import TokenStore, write_store, write_tokens
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import EOS


def pairs(documents):
    return [(d.id, d.text) for d in documents]


@pytest.fixture(scope="module")
def store(tmp_path_factory, documents, tokenizer):
    """37 documents in several shards of about 999 tokens."""
    folder = tmp_path_factory.mktemp("store") / "train"
    write_store(folder, iter(pairs(documents)), tokenizer, shard_tokens=999)
    return TokenStore(folder)


@pytest.fixture(scope="module")
def stream(documents, tokenizer):
    """The whole stream, made without the store."""
    return np.concatenate([[*tokenizer.encode(d.text), EOS] for d in documents])


def test_token_stream_is_every_document_and_eos(store, stream, documents, tokenizer):
    assert len(store.index.shards) > 5
    assert len(store) == len(stream) == sum(store.index.shards) == store.index.tokens
    assert np.array_equal(store.tokens(0, len(store)), stream)
    assert store.index.documents == 37
    for document, tokens in zip(documents, store.documents(), strict=True):
        assert tokens[-1] == EOS
        assert tokenizer.decode(tokens) == document.text


def test_offsets_bytes_and_ids_describe_each_document(store, documents, tokenizer):
    lengths = [len(tokenizer.encode(d.text)) + 1 for d in documents]
    assert store.offsets.tolist() == [0, *np.cumsum(lengths)]
    assert store.bytes.tolist() == [len(d.text.encode()) for d in documents]
    assert store.ids(range(37)) == [d.id for d in documents]
    assert store.ids([36, 0, 7, 7]) == [documents[i].id for i in (36, 0, 7, 7)]


def test_a_shard_holds_whole_documents(store):
    assert set(np.cumsum(store.index.shards)) <= set(store.offsets.tolist())
    longest = int(np.diff(store.offsets).max())
    assert all(999 <= size < 999 + longest for size in store.index.shards[:-1])


@given(st.data())
def test_any_slice_across_shards_equals_the_whole(store, stream, data):
    start = data.draw(st.integers(0, len(stream)))
    stop = data.draw(st.integers(start, len(stream)))
    assert np.array_equal(store.tokens(start, stop), stream[start:stop])
    assert store.tokens(start, stop).dtype == np.int64


@given(st.data())
def test_spans_are_their_slices_in_order(store, stream, data):
    spans = data.draw(st.lists(st.tuples(st.integers(0, len(stream)), st.integers(0, 99)), max_size=7))
    starts = np.array([start for start, _ in spans], dtype=np.int64)
    lengths = np.minimum([length for _, length in spans], len(stream) - starts).astype(np.int64)
    expected = [token for start, n in zip(starts, lengths, strict=True) for token in stream[start : start + n]]
    ids = store.spans(starts, lengths)
    assert ids.tolist() == expected
    assert ids.dtype == np.int64


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 3), (0, 10**9)])
def test_a_slice_outside_the_stream_is_an_error(store, start, stop):
    with pytest.raises(IndexError):
        store.tokens(start, stop)
    with pytest.raises(IndexError):
        store.spans(np.array([3, start]), np.array([1, stop - start]))


def test_shards_and_repetition_change_no_token(tmp_path, store, documents, tokenizer):
    write_store(tmp_path / "one", pairs(documents), tokenizer)
    assert np.array_equal(TokenStore(tmp_path / "one").tokens(0, len(store)), store.tokens(0, len(store)))
    write_store(tmp_path / "again", pairs(documents), tokenizer, shard_tokens=999)
    assert TokenStore(tmp_path / "again").digest == store.digest


def test_small_vocabulary_is_stored_as_little_endian_uint16(store, stream):
    assert store.index.dtype == "uint16"
    raw = b"".join(path.read_bytes() for path in sorted(store.folder.glob("*.bin")))
    assert raw == stream.astype("<u2").tobytes()


def test_vocabulary_beyond_65536_is_stored_as_uint32(tmp_path, tokenizer):
    """A trained model with single characters appended until the ids need more than 16 bits."""
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.path.read_bytes())
    lowest = min(piece.score for piece in model.pieces)
    first = 0x10000
    for i in range((1 << 16) + 99 - len(model.pieces)):
        model.pieces.add(piece=chr(first + i), score=lowest - 1)
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.SerializeToString())
    large = open_tokenizer(path)
    text = chr(first + (1 << 16) + 98 - tokenizer.vocab_size) + "a"
    ids = large.encode(text)
    assert large.vocab_size == 65_635
    assert max(ids) == 65_634
    write_store(tmp_path / "store", [("x", text)], large)
    store = TokenStore(tmp_path / "store")
    assert store.index.dtype == "uint32"
    assert store.tokens(0, len(store)).tolist() == [*ids, EOS]
    assert large.decode(store.tokens(0, len(store))) == text


def test_token_store_without_tokens(tmp_path, tokenizer):
    write_store(tmp_path / "none", [], tokenizer)
    assert len(TokenStore(tmp_path / "none")) == 0
    assert list(TokenStore(tmp_path / "none").documents()) == []
    write_store(tmp_path / "empty", [("x", "")], tokenizer)
    assert [d.tolist() for d in TokenStore(tmp_path / "empty").documents()] == [[EOS]]


def test_a_store_of_another_tokenizer_is_refused_by_name(store, tokenizers):
    store.require(tokenizers["bpe"])
    with pytest.raises(UserError, match=r"train: made by the tokenizer"):
        store.require(tokenizers["unigram"])


TOKENS = 25_000_000  # of two bytes each
READ = """
import sys
from pathlib import Path
from plm_core.text.token_store import TokenStore
from plm_core.text.samplers import Windows

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

store = TokenStore(Path(sys.argv[1]))
windows = Windows(store, 513, 512)
windows.rows_at(3, 0, 64)  # draws the order of the epoch
before = kilobytes("RssAnon"), kilobytes("RssFile")
total = sum(int(windows.rows_at(3, step, 64).sum()) for step in range(len(windows) // 64))
print(kilobytes("RssAnon") - before[0], kilobytes("RssFile") - before[1], total)
"""


def test_token_store_reading_makes_no_copies(tmp_path):
    """By the kernel's own account."""
    draw = np.random.Generator(np.random.PCG64(7))
    documents = ((f"d{i}", 1, draw.integers(7, 4096, TOKENS // 100 - 1)) for i in range(100))
    write_tokens(tmp_path / "store", documents, 4096, "0f", TOKENS // 3)
    command = [sys.executable, "-c", READ, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    anonymous, mapped, total = map(int, done.stdout.split())
    assert total > TOKENS * 1000
    assert mapped > 30_000, "the store was not read through its mapping"
    assert anonymous < 4_000
