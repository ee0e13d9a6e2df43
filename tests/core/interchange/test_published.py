"""Folders as transformers writes them, with tokenizers of their own: read, the same digits, and written back."""

import json
import shutil

import pytest
import sentencepiece
import torch
import transformers
from published import FOLDERS, gpt2, texts, write
from safetensors.torch import load_file, save_file

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.interchange import export_hf, import_hf
from plm_core.text.tokenizers import PIECES, UNK

T = 24


@pytest.fixture(scope="module", params=FOLDERS)
def published(request, tmp_path_factory):
    """A published folder, its model, and the checkpoint read from it."""
    folder = tmp_path_factory.mktemp(request.param) / "theirs"
    made = write(request.param, folder, padding=3)  # a vocabulary is often padded
    import_hf(folder, folder.parent / "ours")
    return folder, made, checkpoint.load(folder.parent / "ours")


@torch.no_grad()
def test_published_model_matches_transformers(published):
    _, theirs, ours = published
    tokenizer, name = ours.tokenizer, ours.config.published.config["model_type"]
    usable = torch.from_numpy(tokenizer.theirs >= 0).nonzero()[:, 0]
    rows = usable[torch.randint(len(usable), (3, T), generator=torch.Generator().manual_seed(5))]
    ids = torch.from_numpy(tokenizer.theirs)[rows]
    output = theirs(ids, output_hidden_states=True)
    hidden = ours.model.encode(rows)
    torch.testing.assert_close(hidden, output.hidden_states[-1], rtol=1e-5, atol=1e-5)
    if type(theirs).__name__ == "BertModel":
        torch.testing.assert_close(ours.model.pool(hidden), output.pooler_output, rtol=1e-5, atol=1e-5)
        return
    if name == "electra":
        torch.testing.assert_close(ours.model.detect(hidden), output.logits, rtol=1e-5, atol=1e-5)
        return
    logits = output.prediction_logits if "prediction_logits" in output else output.logits
    expected = logits[..., torch.from_numpy(tokenizer.theirs[tokenizer.theirs >= 0])]
    actual = ours.model.logits(hidden)
    torch.testing.assert_close(actual[..., usable], expected, rtol=1e-5, atol=1e-5)
    # A special token that the vocabulary lacks has the mean of all logits.
    new = (torch.from_numpy(tokenizer.theirs) < 0).nonzero()[:, 0]
    mean = logits.mean(-1, keepdim=True).expand(*logits.shape[:-1], len(new))
    torch.testing.assert_close(actual[..., new], mean, rtol=1e-5, atol=1e-5)


def test_published_model_export_equals_import(published, tmp_path):
    folder, _, _ = published
    export_hf(folder.parent / "ours", tmp_path / "again")
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "again").iterdir()}
    for path in folder.iterdir():
        written = (tmp_path / "again" / path.name).read_bytes()
        if path.name == "config.json":
            assert json.loads(written) == json.loads(path.read_bytes())
        else:
            assert written == path.read_bytes(), path.name


def test_published_model_after_training_is_exported(published, tmp_path):
    _, _, ours = published
    torch.manual_seed(4)
    trained = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in ours.model.state_dict().items()}
    facts = vars(ours.config) | {"step": 5}
    checkpoint.save(tmp_path / "trained", trained, ours.tokenizer, checkpoint.CheckpointConfig(**facts))
    same_in_transformers(tmp_path / "trained", tmp_path / "theirs")


@pytest.mark.parametrize("paper", ["bert", "gpt2", "openai-gpt", "llama-tied"])
def test_scratch_model_with_published_tokenizer_is_exported(paper, tmp_path):
    write(paper, tmp_path / "published")
    import_hf(tmp_path / "published", tmp_path / "imported")
    ours = checkpoint.load(tmp_path / "imported")
    facts = vars(ours.config) | {"step": 5, "published": None}
    described = checkpoint.CheckpointConfig(**facts)
    checkpoint.save(tmp_path / "scratch", ours.model.state_dict(), ours.tokenizer, described)
    same_in_transformers(tmp_path / "scratch", tmp_path / "theirs")
    library = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for text in texts(99):
        theirs = library(text, add_special_tokens=False)["input_ids"]
        assert [int(ours.tokenizer.theirs[i]) for i in ours.tokenizer.encode(text)] == theirs, text


def same_in_transformers(folder, target):
    """Export a checkpoint: transformers finds every weight, and computes the same states."""
    export_hf(folder, target)
    ours = checkpoint.load(folder)
    config = json.loads((target / "config.json").read_text())
    model, info = getattr(transformers, config["architectures"][0]).from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    rows = torch.arange(len(PIECES), len(PIECES) + T)[None]
    with torch.no_grad():
        actual = model.eval()(torch.from_numpy(ours.tokenizer.theirs)[rows], output_hidden_states=True).hidden_states[
            -1
        ]
        expected = ours.model.encode(rows)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_ids_are_those_of_the_published_tokenizer(published):
    folder, _, ours = published
    tokenizer = ours.tokenizer
    if (folder / "tokenizer.json").is_file():
        reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        expected = reference(list(texts(900)), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    else:
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        expected = [model.encode(text) for text in texts(900)]
    for text, theirs in zip(texts(900), expected, strict=True):
        ids = tokenizer.encode(text)
        assert [int(tokenizer.theirs[i]) for i in ids] == theirs, text
        spelling = tokenizer.spell(text)
        assert spelling.ids == ids
        assert sum(spelling.sizes) == (len(text.encode()) if ids else 0)
        assert min(spelling.sizes, default=0) >= 0


@pytest.mark.parametrize("text", ["[MASK] [CLS]", "<s> </s> <mask>", "<|endoftext|>", "".join(PIECES)])
def test_published_tokenizer_never_encodes_special_tokens(published, text):
    assert not set(published[2].tokenizer.encode(text)) & (set(range(len(PIECES))) - {UNK})


@pytest.mark.parametrize(
    ("paper", "change", "message"),
    [
        ("gpt2", lambda c: c.update(vocab_size=99), r"tokenizer\.json: has the id \d+, but config\.json has 99"),
        ("gpt2", lambda c: c.update(auto_map={}), r"config\.json\.auto_map: needs code from the folder"),
        ("bert", lambda c: c.update(model_type="deberta"), r"model_type: found 'deberta'; expected one of gpt2, llama"),
        ("bert", lambda c: c.update(hidden_size=27), r"the weights of .* have shape .*; expected .* by config\.json"),
    ],
)
def test_published_folder_with_unfit_parts_is_refused(tmp_path, paper, change, message):
    write(paper, tmp_path / "theirs")
    facts = json.loads((tmp_path / "theirs/config.json").read_text())
    change(facts)
    (tmp_path / "theirs/config.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=message):
        import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_pickles_and_missing_tokenizers_are_refused(tmp_path):
    transformers.GPT2Config(vocab_size=300, n_embd=12, n_layer=1, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no tokenizer; expected tokenizer\.json, tokenizer\.model"):
        import_hf(tmp_path, tmp_path / "ours")
    gpt2(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 330}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"pytorch_model\.bin could run code when read, so it is not read"):
        import_hf(tmp_path, tmp_path / "ours")


@pytest.mark.parametrize("paper", ["bert", "gpt2", "openai-gpt"])
def test_legacy_vocabulary_files_give_the_same_tokenizer(tmp_path, paper):
    """``vocab.txt``; ``vocab.json`` with ``merges.txt``."""
    write(paper, tmp_path / "new")
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    content = json.loads((tmp_path / "old/tokenizer.json").read_text())["model"]
    (tmp_path / "old/tokenizer.json").unlink()
    if paper == "bert":
        (tmp_path / "old/vocab.txt").write_text("".join(f"{token}\n" for token in content["vocab"]))
    else:
        (tmp_path / "old/vocab.json").write_text(json.dumps(content["vocab"]))
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
        (tmp_path / "old/merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    for folder in ("new", "old"):
        import_hf(tmp_path / folder, tmp_path / f"{folder}-ours")
    new, old = (checkpoint.load(tmp_path / f"{folder}-ours").tokenizer for folder in ("new", "old"))
    for text in texts(300):
        assert new.encode(text) == old.encode(text)


def test_a_model_that_is_larger_than_memory_is_refused_before_it_is_built(tmp_path):
    rows = gpt2(tmp_path)
    config = transformers.GPT2Config(vocab_size=rows, n_embd=65536, n_layer=500, n_head=64)
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"billion weights take \d+ GiB; this machine has \d+ GiB"):
        import_hf(tmp_path, tmp_path / "ours")


def test_missing_weights_are_drawn_reproducibly(published, tmp_path):
    folder, _, ours = published
    torch.manual_seed(99)
    assert import_hf(folder, tmp_path / "again") == ours.digest


@pytest.mark.parametrize("paper", ["bert", "roberta", "gpt2"])
def test_legacy_buffers_and_vocab_txt_round_trip(tmp_path, paper):
    """Buffers, which transformers computes itself, and ``vocab.txt`` beside ``tokenizer.json``."""
    write(paper, tmp_path / "theirs")
    path = tmp_path / "theirs/model.safetensors"
    tensors = load_file(path)
    if paper == "gpt2":
        for i in range(2):
            tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(40, 40).tril().to(torch.uint8)[None, None]
    else:
        tensors[f"{paper}.embeddings.position_ids"] = torch.arange(40 if paper == "bert" else 42)[None]
        (tmp_path / "theirs/vocab.txt").write_text("[PAD]\n[UNK]\n")
    save_file(tensors, path, {"format": "pt"})
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "again")
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir() if p.name != "config.json"} == {
        p.name: p.read_bytes() for p in (tmp_path / "theirs").iterdir() if p.name != "config.json"
    }


def test_extended_context_is_exported(tmp_path):
    write("llama-tied", tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    ours = checkpoint.load(tmp_path / "ours")
    facts = vars(ours.config) | {"step": 5, "model": ours.config.model | {"context": 128, "rope_base": 99.0}}
    longer = checkpoint.CheckpointConfig(**facts)
    checkpoint.save(tmp_path / "longer", ours.model.state_dict(), ours.tokenizer, longer)
    export_hf(tmp_path / "longer", tmp_path / "again")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "again")
    assert config.max_position_embeddings == 128
    assert config.rope_parameters["rope_theta"] == 99.0
    assert config.vocab_size == len(ours.tokenizer.ours)
