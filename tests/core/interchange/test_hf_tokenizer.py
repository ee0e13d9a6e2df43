"""The exported tokenizer gives the ids that ours gives, for every text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from plm_core.interchange import FAMILIES, tokenizer_files
from plm_core.text.tokenizer_kinds import open_tokenizer, train_tokenizer
from plm_core.text.tokenizers import CLS, EOS, JSON_FILE, MASK, MODEL_FILE, PIECES, SEP, UNK, TokenizerConfig

EDGES = [
    "",
    " ",
    "\n",
    "   a  b   \n\n \n  c ",
    "a\r\nb\rc\0d\te",
    "\u2581x\u2581",
    "e\u0301 \u00e9 \u1e9b\u0323 \uac00 \u1100\u1161",
    "日本語 العربية ελληνικά 😀👩‍👩‍👧‍👦 \U0010ffff \u200d",
    "".join(PIECES),
    "<mask><<mask>> <s>text</s> <0x41><0x0A> <0xZZ> <unk",
]
# Text in which runs, special pieces and unknown characters stand next to each other oftener than by chance.
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Cn"))),
    st.text(st.sampled_from("ab bn\n<0x41>/smk\u0301é日😀_")),
    st.lists(st.sampled_from([*PIECES, "<0x41>", "bala", " ", "  ", "\n", "日"])).map("".join),
)


OTHERS = ["wordpiece", "wordpiece lower-case", "bytelevel", "bpe of llama", "bytelevel of llama"]
SENTENCEPIECE = ["bpe", "unigram", "bpe with markup", "unigram with markup"]


@pytest.fixture(scope="module", params=[*SENTENCEPIECE, *OTHERS])
def both(request, tokenizers, documents, tmp_path_factory):
    """Our tokenizer and transformers' from the exported files; two have a piece for every character of ``<mask>``."""
    kind, *more = request.param.split(" ")
    folder = tmp_path_factory.mktemp("hf")
    ours = tokenizers[kind]
    if more == ["lower-case"]:
        config = TokenizerConfig(kind, 307, lowercase=True)
        (folder / JSON_FILE).write_bytes(train_tokenizer([d.text for d in documents], config))
        ours = open_tokenizer(folder)
    elif "markup" in more:
        line = "<p>x</p> a<s c>d <ma <0x4 e/f 0123456789ABCDEF ananananas aaaa aaaaaa c"
        texts = [*(d.text for d in documents), *[line] * 37]
        (folder / MODEL_FILE).write_bytes(train_tokenizer(texts, TokenizerConfig(kind, 499, 1.0)))
        ours = open_tokenizer(folder / MODEL_FILE)
    assert ours.kind == kind
    # Some model types have a class of tokenizers of their own, which is not to be taken.
    family = FAMILIES["llama" if "llama" in more else "gpt"]
    exported = tokenizer_files.tokenizer_json(ours, family)
    if request.param in SENTENCEPIECE:
        # The two ways by which no special piece of a unigram tokenizer is found in a text: cut, or too unlikely.
        assert (exported["pre_tokenizer"] is None) == (request.param != "unigram")
    (folder / "tokenizer.json").write_text(json.dumps(exported))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_files.tokenizer_config(family, 99)))
    (folder / "config.json").write_text(json.dumps({"model_type": family.model_type}))
    return ours, AutoTokenizer.from_pretrained(folder)


def encode(theirs, text):
    return theirs(text, add_special_tokens=False)["input_ids"]


def test_exported_tokenizer_gives_the_same_ids_and_decodes(both, documents):
    ours, theirs = both
    for text in [*EDGES, *(d.text for d in documents)]:
        assert encode(theirs, text) == ours.encode(text)

    @settings(max_examples=200)
    @given(TEXTS)
    def check(text):
        ids = ours.encode(text)
        assert encode(theirs, text) == ids
        if ours.lossless:
            assert theirs.decode(ids) == ours.decode(ids)
        else:  # theirs says <unk>, where ours leaves it out
            kept = [i for i in ids if i != UNK]
            assert theirs.decode(kept) == ours.decode(kept)

    check()


def test_exported_tokenizer_encodes_special_tokens_on_request_only(both):
    _, theirs = both
    assert not set(encode(theirs, "".join(PIECES))) & (set(range(len(PIECES))) - {UNK})
    ids = theirs("<mask>", add_special_tokens=False, split_special_tokens=False)["input_ids"]
    assert ids == [MASK]
    assert theirs.convert_tokens_to_ids(list(PIECES)) == list(range(len(PIECES)))


def test_exported_tokenizer_frames_texts_as_trained(exported):
    name, folder, hf = exported
    ours, theirs = open_tokenizer(folder), AutoTokenizer.from_pretrained(hf)
    a, b = ours.encode("bala ba"), ours.encode("\nti")
    expected = {
        "gpt": ([EOS, *a], [EOS, *a, EOS, *b], None),
        "llama": ([EOS, *a], [EOS, *a, EOS, *b], None),
        "bert": ([CLS, *a, SEP], [CLS, *a, SEP, *b, SEP], [0] * (len(a) + 2) + [1] * (len(b) + 1)),
        "modernbert": ([CLS, *a, SEP], [CLS, *a, SEP, *b, SEP], None),
        "t5": ([*a, EOS], [*a, EOS, *b, EOS], None),
        "xlnet": ([*a, SEP, CLS], [*a, SEP, *b, SEP, CLS], [0] * (len(a) + 1) + [1] * (len(b) + 1) + [2]),
    }
    single, double, segments = expected[name]
    assert theirs("bala ba")["input_ids"] == single
    pair = theirs("bala ba", "\nti")
    assert pair["input_ids"] == double
    assert pair.get("token_type_ids") == segments
    assert theirs.model_max_length == 17
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (0, 1, MASK)
    assert (theirs.eos_token_id, theirs.cls_token_id, theirs.sep_token_id) == (EOS, CLS, SEP)
