"""A published tokenizer with more pieces: what has none of them is spelled as before, and a new row is a mean."""

import pytest
import torch
from published import SCRIPTS, texts, write

from plm_core import checkpoint
from plm_core.corpus.normalize import normalize
from plm_core.evaluation.likelihood import in_evidence
from plm_core.interchange import export_hf, import_hf
from plm_core.text.tokenizer_kinds import read_tokenizer
from plm_core.text.tokenizers import UNK
from plm_core.text.vocabulary_extension import extend_tokenizer, grow_weights

WORDS = [
    "another nation: thirteen frontiers, neither interior",
    "the fortune of a father, the nature of the future",
    "fountain intuition annotation Ελλάδα दुनियादारी",
    "return authentic information: x = 17901790\n\tx = 790790",
]
CORPUS = [normalize(f"{text} {other}") for text in SCRIPTS for other in WORDS] * 3
COUNT = 12


@pytest.fixture(scope="module", params=["bert", "gpt2", "llama"])
def start(request, tmp_path_factory):
    """The checkpoint of a published model whose vocabulary is padded."""
    folder = tmp_path_factory.mktemp(request.param)
    write(request.param, folder / "theirs", padding=3)
    import_hf(folder / "theirs", folder / "ours")
    return checkpoint.load(folder / "ours")


def larger(base, count=COUNT):
    return read_tokenizer(base.path, extend_tokenizer(base, CORPUS, count))


def test_extended_tokenizer_encodes_old_text_as_before(start):
    old = start.tokenizer
    new = larger(old)
    assert new.vocab_size == old.vocab_size + COUNT
    used = set()
    for text in [*texts(1500), *CORPUS]:
        before, after = old.encode(text), new.encode(text)
        added = {token for token in after if token >= old.vocab_size}
        used |= added
        assert added or after == before
        assert len(after) + len(added) <= len(before)
        assert after.count(UNK) == before.count(UNK)
        assert new.decode(after) == old.decode(before)
        # Each new piece stands for its parts.
        spelled = [
            part for token in after for part in (new.parts[token - old.vocab_size] if token in added else [token])
        ]
        assert new.decode(spelled) == new.decode(after)
    assert len(used) > COUNT // 2
    assert extend_tokenizer(old, CORPUS, COUNT) == new.data


def test_extended_embeddings_are_means_of_their_parts(start):
    old = start.tokenizer
    new = larger(larger(old, 5), 7)
    assert new.starts[0] == old.sha256
    weights = start.model.state_dict()
    sizes = vars(start.model.config) | {"vocab_size": new.vocab_size}
    like = checkpoint.build(start.config.architecture, sizes, "model").state_dict()
    longer = grow_weights(weights, like, new)
    changed = {name for name in weights if len(weights[name]) != len(longer[name])}
    assert changed == {name for name in ("tokens.weight", "bias", "unembed.weight") if name in weights}
    for name, tensor in longer.items():
        assert tensor.shape == like[name].shape
        assert torch.equal(tensor[: len(weights[name])], weights[name])
    for name in changed:
        for token, parts in enumerate(new.parts, old.vocab_size):
            torch.testing.assert_close(longer[name][token], longer[name][parts].mean(0), rtol=0, atol=0)


def test_lossy_extended_tokenizer_is_named_by_its_base(start):
    new = larger(start.tokenizer)
    assert in_evidence("bits_per_byte", new) == in_evidence("bits_per_byte", start.tokenizer)


def test_extended_tokenizer_is_exported_to_transformers(start, tmp_path):
    import transformers

    new = larger(start.tokenizer)
    facts = vars(start.config) | {"step": 5, "tokenizer_sha256": new.sha256}
    facts["model"] = start.config.model | {"vocab_size": new.vocab_size}
    like = checkpoint.build(start.config.architecture, facts["model"], "model").state_dict()
    weights = grow_weights(start.model.state_dict(), like, new)
    checkpoint.save(tmp_path / "ours", weights, new, checkpoint.CheckpointConfig(**facts))
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    model = transformers.AutoModel.from_pretrained(tmp_path / "theirs")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "theirs")
    assert model.get_input_embeddings().num_embeddings == len(new.ours)
    for text in CORPUS[:20]:
        theirs = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert new.theirs[new.encode(text)].tolist() == theirs


@pytest.mark.parametrize("kind", ["bpe", "bytelevel", "wordpiece"])
def test_extension_refuses_unpublished_tokenizers(tokenizers, kind):
    with pytest.raises(ValueError, match=r"extend: .* is not a published WordPiece or byte-level BPE; expected extend"):
        extend_tokenizer(tokenizers[kind], CORPUS, 3)


def test_more_pieces_than_the_text_has_are_refused(start):
    with pytest.raises(ValueError, match=r"extend: 9999 is more than this corpus supports; expected at most \d+"):
        extend_tokenizer(start.tokenizer, CORPUS, 9999)
