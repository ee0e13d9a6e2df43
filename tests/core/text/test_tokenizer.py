"""Every kind of tokenizer: no text can say a special token, and all but one kind say every text exactly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plm_core.config import UserError, from_dict
from plm_core.corpus.normalize import normalize, split_text
from plm_core.text import hf_tokenizers, sentencepiece_tokenizers
from plm_core.text.tokenizer_kinds import open_tokenizer, read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import (
    BOS,
    CLS,
    EOS,
    JSON_FILE,
    MASK,
    MODEL_FILE,
    NOT_LEARNED,
    PAD,
    PIECES,
    SEP,
    UNK,
    TokenizerConfig,
)

KINDS = tuple(NOT_LEARNED)
LOSSLESS = ("bpe", "unigram", "bytelevel")
SCRIPTS = [
    "漢字",
    "العربية",
    "नमस्ते",
    "한국어",
    "\u1100\u1161",
    "ẛ̣",
    "e\u0301",
    "👩\u200d🚀",
    "🏳️\u200d🌈",
    "İSTANBUL",
    "ﬁ",
]
AWKWARD = st.lists(
    st.sampled_from(
        [
            *(*PIECES, "[MASK]", "##", "Ġ", "<0x41>", "<0x00>", "\u2581", "_", " ", "  ", "\n", "\t", "\r\n", "\u00a0"),
            *("\ufffd", "\x1c", "\x85", "\u2028", "\ufeff", "\u0378", "\ue000", "a", "é", "ba", "Bala", "'s", "7"),
            *SCRIPTS,
        ]
    )
).map("".join)


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text=st.text() | AWKWARD)
@example(text=" leading and trailing ")
@example(text="\n\n\n")
@example(text="\ufeffBOM, \u200b zero width, \U0001f469\u200d\U0001f680 joined, \ue000 private, \U0010ffff last")
def test_decode_of_encode_is_the_normal_form(tokenizers, kind, text):
    assert tokenizers[kind].lossless
    assert tokenizers[kind].decode(tokenizers[kind].encode(text)) == normalize(text)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text() | AWKWARD)
def test_text_never_encodes_to_a_special_token(tokenizers, kind, text):
    """But for UNK, which says that a lossy tokenizer has no piece for a word."""
    special = set(tokenizers[kind].encode(text)) & set(range(len(PIECES)))
    assert special <= (set() if tokenizers[kind].lossless else {UNK})


@pytest.mark.parametrize("kind", KINDS)
def test_special_token_name_in_the_corpus_is_ordinary_text(kind, tmp_path):
    texts = [f"{piece} ba{piece}ba [MASK] {i}" for i in range(99) for piece in PIECES]
    size = NOT_LEARNED[kind] + (20 if kind == "unigram" else 80)
    (tmp_path / "tokenizer").write_bytes(train_tokenizer(texts, TokenizerConfig(kind, size, 1.0)))
    trained = open_tokenizer(tmp_path / "tokenizer")
    for text in (*PIECES, "".join(PIECES), "[MASK]"):
        ids = trained.encode(text)
        assert min(ids) >= len(PIECES)
        assert trained.decode(ids).replace(" ", "") == text


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text() | AWKWARD)
@example(text="a \u0301b")
@example(text="漢\u0301字 \u0958 İ")
def test_token_byte_sizes_add_up_to_the_text(tokenizers, kind, text):
    spelled = tokenizers[kind].spell(text)
    assert spelled.ids == tokenizers[kind].encode(text)
    # Many at once are encoded as one by one.
    assert [ids.tolist() for ids in tokenizers[kind].encode_batch(["ba", text])][1] == spelled.ids
    assert len(spelled.sizes) == len(spelled.starts) == len(spelled.ids)
    assert min(spelled.sizes, default=0) >= 0
    assert sum(spelled.sizes) == (len(normalize(text).encode()) if spelled.ids else 0)
    assert spelled.ids or not tokenizers[kind].lossless or not normalize(text)
    assert spelled.starts[:1] in ([], [True])


@pytest.mark.parametrize("kind", KINDS)
@given(first=st.lists(st.integers(0, 306), max_size=20), second=st.lists(st.integers(0, 306), max_size=20))
def test_decode_of_more_tokens_extends_the_text(tokenizers, kind, first, second):
    begun = tokenizers[kind].decode(first).rstrip("\ufffd")
    whole = tokenizers[kind].decode([*first, *second])
    assert whole.startswith(begun)
    whole.encode()


@given(text=AWKWARD | st.text(alphabet="ba so\n é\t\u3000▁中"))
def test_merging_word_by_word_is_merging_the_text(tokenizers, text):
    tokenizer = tokenizers["bpe"]
    assert tokenizer.encode(text) == tokenizer._model.encode(normalize(text))


@pytest.mark.parametrize("kind", LOSSLESS)
def test_special_tokens_have_their_ids_and_are_left_out_of_the_text(tokenizers, kind):
    tokenizer = tokenizers[kind]
    assert tuple(tokenizer.piece(i) for i in range(7)) == PIECES
    assert tokenizer.vocab_size == 307
    ids = [BOS, *tokenizer.encode("Ba é"), SEP, MASK, PAD, *tokenizer.encode(" so\n"), CLS, EOS, UNK]
    assert tokenizer.decode(ids) == "Ba é so\n"


TRAIN = """
import hashlib, sys
from pathlib import Path
from plm_core.text.tokenizers import TokenizerConfig
from plm_core.text.tokenizer_kinds import train_tokenizer
texts = Path(sys.argv[1]).read_text().split("\\f")
for kind in sys.argv[2:]:
    print(hashlib.sha256(train_tokenizer(texts, TokenizerConfig(kind, 499))).hexdigest())
"""


def test_tokenizer_training_is_deterministic(documents, tmp_path):
    """The hash tables of Python and of the library are ordered anew in each process."""
    texts = "\f".join(d.text.replace("ba", "bé").replace("ko", "ﬂ漢") for d in documents)
    (tmp_path / "texts").write_text(texts)
    digests = set()
    for seed, threads in (("0", "1"), ("1", "2"), ("2", "3"), ("3", "1")):
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, tmp_path / "texts", *KINDS],
            env=os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(set(digests.pop().split())) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_too_large_vocabulary_is_refused_with_the_largest(documents, kind):
    texts = [d.text for d in documents[:5]]
    with pytest.raises(ValueError, match=r"^vocab_size: 50000 is more than .* expected at most (\d+)") as caught:
        train_tokenizer(texts, TokenizerConfig(kind, 50_000))
    largest = int(str(caught.value).split("at most ")[1].split(",")[0])
    assert len(train_tokenizer(texts, TokenizerConfig(kind, largest))) > 0
    with pytest.raises(ValueError, match=r"^vocab_size"):
        train_tokenizer(texts, TokenizerConfig(kind, largest + 1))


@pytest.mark.parametrize(("kind", "size", "least"), [("bpe", -1, 264), *((k, n, n) for k, n in NOT_LEARNED.items())])
def test_too_small_vocabulary_is_refused_by_name(kind, size, least):
    with pytest.raises(UserError, match=rf"^tokenizer\.vocab_size: {size} is too small; expected more than {least}$"):
        from_dict(TokenizerConfig, {"kind": kind, "vocab_size": size}, "tokenizer")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_vocabulary_below_the_alphabet_is_refused(kind):
    texts = ["".join(chr(0xA000 + i) for i in range(199)) * 3]  # Yi syllables: letters, unlike ideographs
    with pytest.raises(ValueError, match=r"^vocab_size: 270 is too small; expected at least \d+") as caught:
        train_tokenizer(texts, TokenizerConfig(kind, 270, character_coverage=1.0))
    smallest = int(str(caught.value).split("at least ")[1])
    assert len(train_tokenizer(texts, TokenizerConfig(kind, smallest, character_coverage=1.0))) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], ["", " \n "]])
def test_an_empty_corpus_is_refused(kind, texts):
    with pytest.raises(ValueError, match=r"^vocab_size: .*expected.* more text$"):
        train_tokenizer(texts, TokenizerConfig(kind, 300))


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_of_text_without_spaces_is_lossless(kind):
    characters = "".join(map(chr, range(0xA000, 0xA064)))
    texts = [characters[i:] + characters[:i] + "\n" for i in range(100)] * 3
    for some in (texts, [*texts, "a b"]):
        trained = read_tokenizer(Path("x"), train_tokenizer(some, TokenizerConfig(kind, 500)))
        assert UNK not in trained.encode(characters)
        assert not trained.lossless or trained.decode(trained.encode(f"{texts[0]} a  b")) == f"{texts[0]} a  b"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_unknown_character_keeps_its_line(kind):
    with_it = [f"\u2585 {'baso' * (i % 7)} tumi{'ko' * i}" for i in range(40)]
    without = [text.removeprefix("\u2585") for text in with_it]
    config = TokenizerConfig(kind, 275)
    assert train_tokenizer(with_it, config) == train_tokenizer(without, config)


@pytest.mark.parametrize(("kind", "size"), [("bytelevel", 266), ("wordpiece", 16)])
def test_tokenizer_learns_from_parts_of_a_long_word(kind, size, monkeypatch):
    config = TokenizerConfig(kind, size)
    texts = ["so" * (1 + i % 4) for i in range(99)]  # of eight letters at most
    expected = train_tokenizer(texts, config)
    monkeypatch.setattr(hf_tokenizers, "LONGEST_RUN", 8)
    assert train_tokenizer(texts, config) == expected
    with pytest.raises(ValueError, match=f"expected at most {size}, or more text"):  # pieces of 2, 4 and 8 letters
        train_tokenizer(["so" * 500], TokenizerConfig(kind, size + 1))


def test_foreign_tokenizer_file_is_named(tmp_path, tokenizer):
    path = tmp_path / MODEL_FILE
    with pytest.raises(UserError, match=r"tokenizer\.model: missing"):
        open_tokenizer(path)
    for damaged in (b"", b"\xff" * 99, tokenizer.path.read_bytes().replace(b"<mask>", b"<MASK>")):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"tokenizer\.model"):
            open_tokenizer(path)


def changed(content, *keys, value):
    """A copy of nested dicts with one value replaced; ``...`` takes it away."""
    copy = json.loads(json.dumps(content))
    inner = copy
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return copy


@pytest.mark.parametrize("kind", ["bytelevel", "wordpiece"])
def test_tokenizer_json_with_other_settings_is_refused(kind, tokenizers, tmp_path):
    path, data = tmp_path / JSON_FILE, tokenizers[kind].data
    content = json.loads(data)
    vocab = content["model"]["vocab"]
    renamed = {("<MASK>" if piece == "<mask>" else piece): i for piece, i in vocab.items()}
    cases = [
        changed(content, "added_tokens", value=[{"id": 4, "content": "<mask>", "special": True}]),
        changed(content, "normalizer", value={"type": "Lowercase"}),
        changed(content, "pre_tokenizer", value={"type": "Whitespace"}),
        changed(content, "pre_tokenizer", value=...),
        changed(content, "model", "type", value="Unigram"),
        changed(content, "model", "type", value=7),
        changed(content, "model", "vocab", value=renamed),
        changed(content, "model", "vocab", value=[*vocab]),
        changed(content, "model", "vocab", value=vocab | {"x y z": 999}),
        changed(content, "model", "vocab", value=vocab | {"\ud800": len(vocab)}),
        changed(content, "model", value=[]),
        [content],
    ]
    for damaged in [*map(json.dumps, cases), data[:-9].decode(), "{"]:
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            open_tokenizer(path)
    path.write_text(json.dumps(content))
    assert open_tokenizer(tmp_path).encode("bala ba") == tokenizers[kind].encode("bala ba")


def test_bpe_merges_that_do_not_fit_vocabulary_are_refused(tokenizers, tmp_path):
    path, content = tmp_path / JSON_FILE, json.loads(tokenizers["bytelevel"].data)
    merges = content["model"]["merges"]
    for wrong in (merges[:-1], [*merges, ["<", "mask>"]], [*merges, ["a"]], [*merges, 7], [*merges, ["a", "Ķ"]], "a b"):
        path.write_text(json.dumps(changed(content, "model", "merges", value=wrong)))
        with pytest.raises(UserError, match=r"tokenizer\.json: not a bytelevel tokenizer of this project"):
            open_tokenizer(path)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_refuses_lone_surrogates(tokenizers, kind):
    message = r"^text: holds a lone surrogate at character 4; expected text that is valid"
    for method in (tokenizers[kind].encode, tokenizers[kind].spell, lambda text: tokenizers[kind].encode_batch([text])):
        with pytest.raises(UserError, match=message):
            method("abc\ud800")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_line_longer_than_the_trainer_reads_is_cut_and_not_left_out(documents, monkeypatch, kind):
    monkeypatch.setattr(sentencepiece_tokenizers, "LONGEST_LINE", 99)
    texts = [document.text for document in documents]
    long = " ".join(f"zyx{'w' * (i % 7)} vut" for i in range(999))
    config = TokenizerConfig(kind, 307)
    assert train_tokenizer([*texts, long], config) != train_tokenizer(texts, config)
    parts = list(split_text(long + "q" * 250, sentencepiece_tokenizers.LONGEST_LINE))
    assert "".join(parts) == long + "q" * 250
    assert max(map(len, parts)) <= 99
    assert all(part.startswith(" ") for part in parts[1:-3])


@pytest.mark.parametrize(
    "changes",
    [
        {"add_dummy_prefix": True},
        {"normalization_rule_name": "nfkc"},
        {"byte_fallback": False},
        {"user_defined_symbols": []},
        {"user_defined_symbols": ["\n", "ba"]},
    ],
)
def test_a_model_of_sentencepiece_that_this_project_does_not_train_is_refused(
    documents, tmp_path, monkeypatch, changes
):
    trainer = sentencepiece_tokenizers.sentencepiece.SentencePieceTrainer
    train = trainer.train
    monkeypatch.setattr(trainer, "train", lambda **options: train(**(options | changes)))
    model = train_tokenizer([document.text for document in documents], TokenizerConfig("bpe", 307))
    monkeypatch.undo()
    (tmp_path / MODEL_FILE).write_bytes(model)
    with pytest.raises(UserError, match=r"tokenizer.model: (changes texts|its first pieces are)"):
        open_tokenizer(tmp_path)
