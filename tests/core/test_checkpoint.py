"""A checkpoint comes back as it was saved, or not at all."""

import json
from dataclasses import replace

import pytest
import torch
from papers import PAPERS, make

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.configs.architectures import MODELS
from plm_core.shared.files import CHECKSUMS, write_checksums


@pytest.fixture
def saved(tmp_path, tokenizer, make_gpt):
    model = make_gpt(dtype=torch.float32, vocab_size=tokenizer.vocab_size)
    config = checkpoint.CheckpointConfig(
        checkpoint.FORMAT, "gpt", "causal", vars(model.config), tokenizer.sha256, step=99, valid_nats=5.25
    )
    digest = checkpoint.save(
        tmp_path / "gpt", model.state_dict(), tokenizer, config, {"head.weight": torch.ones(3, 21)}
    )
    return tmp_path / "gpt", model, config, digest


def test_checkpoint_round_trips_weights_and_tokenizer(saved, tokenizer):
    folder, model, config, digest = saved
    loaded = checkpoint.load(folder)
    assert loaded.config == config
    assert loaded.digest == digest
    assert loaded.tokenizer.sha256 == tokenizer.sha256
    assert not loaded.model.training
    assert loaded.model.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.model.state_dict().items())
    assert torch.equal(loaded.extra.pop("head.weight"), torch.ones(3, 21))
    assert not loaded.extra


def test_a_checkpoint_describes_itself_without_its_weights_and_older_ones_name_no_lineage(saved, tmp_path, tokenizer):
    folder, model, config, _ = saved
    assert checkpoint.describe(folder) == config
    described = replace(config, lineage=checkpoint.Lineage("0f", "f0"))
    checkpoint.save(tmp_path / "new", model.state_dict(), tokenizer, described)
    assert checkpoint.describe(tmp_path / "new") == described == checkpoint.load(tmp_path / "new").config
    path = folder / checkpoint.CONFIG_FILE
    older = json.loads(path.read_text())
    assert older.pop("lineage") is None
    path.write_text(json.dumps(older))
    write_checksums(folder)
    assert checkpoint.describe(folder) == config


@pytest.mark.parametrize("name", PAPERS)
def test_checkpoint_of_every_architecture_round_trips(tmp_path, tokenizer, name):
    model, _ = make(name, dtype=torch.float32)
    paper = next(paper for paper, entry in MODELS.items() if entry.model is type(model))
    config = checkpoint.CheckpointConfig(1, paper, "causal", vars(model.config), tokenizer.sha256, 99, 5.25)
    checkpoint.save(tmp_path / "model", model.state_dict(), tokenizer, config)
    before = torch.get_rng_state()
    loaded = checkpoint.load(tmp_path / "model").model
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.requires_grad and parameter.data_ptr() % 64 == 0 for parameter in loaded.parameters())
    ids = torch.arange(7, 36)[None]
    assert torch.equal(loaded.encode(ids), model.eval().encode(ids))


def resigned(folder, change):
    """Change ``config.json`` and sign the folder anew: not damage, but a folder that somebody made."""
    path = folder / checkpoint.CONFIG_FILE
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    (folder / CHECKSUMS).unlink()
    write_checksums(folder)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda c: c.update(format=7), r"config\.json\.format: found 7"),
        (lambda c: c.update(architecture="rnn"), r"config\.json\.architecture: found 'rnn'"),
        (lambda c: c.update(tokenizer_sha256="0" * 64), r"tokenizer\.model: is not the tokenizer"),
        (lambda c: c["model"].update(layers=3), r"model\.safetensors: does not fit"),
        (lambda c: c["model"].update(context=14), r"model\.safetensors: does not fit"),
        (lambda c: c["model"].update(heads=2), r"config\.json\.model\.heads: 2 does not divide"),
        (lambda c: c.pop("step"), r"config\.json\.step: missing"),
        (lambda c: c["model"].update(context=10**13), r"model\.safetensors: does not fit"),
        (lambda c: c["model"].update(vocab_size=10**30), r"model\.safetensors: does not fit"),
        (lambda c: c["model"].update(layers=10**9), r"model\.safetensors: does not fit"),
        (lambda c: c["model"].update(width=3 * 10**12), r"model\.safetensors: does not fit"),
    ],
)
def test_inconsistent_checkpoint_is_refused_by_name(saved, change, place):
    resigned(saved[0], change)
    with pytest.raises(UserError, match=place):
        checkpoint.load(saved[0])


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"format": ' * 20_000, b"7", b"{}"])
def test_invalid_checkpoint_description_is_one_line(saved, text):
    (saved[0] / checkpoint.CONFIG_FILE).write_bytes(text)
    write_checksums(saved[0])
    with pytest.raises(UserError, match=r"config\.json") as caught:
        checkpoint.load(saved[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["head.weight", None])
def test_checkpoint_refuses_non_finite_weights(saved, tmp_path, tokenizer, name, value):
    _, model, config, _ = saved
    weights = model.state_dict() | {"head.weight": torch.ones(3, 21)}
    weights[name or next(iter(weights))][0, 0] = value
    checkpoint.save(tmp_path / "broken", weights, tokenizer, config)
    with pytest.raises(UserError, match=r"model\.safetensors: .* holds numbers that are not finite"):
        checkpoint.load(tmp_path / "broken")
