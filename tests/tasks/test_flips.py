"""A flipped bit in any kind of file that is written and read is reported or has no effect: never another result."""

import contextlib
import random
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.evaluation.evidence import read_likelihood
from plm_core.shared.files import atomic_folder
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.training.snapshot import Snapshots

FORMATS = Path(__file__).with_name("formats")


class Told(Exception):
    """Damage was noticed without an error."""


def checkpoint_of(folder):
    loaded = checkpoint.load(folder)
    return loaded.config, loaded.digest, {name: w.tolist() for name, w in loaded.model.state_dict().items()}


def tokens_of(folder):
    store = TokenStore(folder)
    return [document.tolist() for document in store.documents()], store.ids(range(2)), store.bytes.tolist()


def tokenizer_of(folder):
    tokenizer = open_tokenizer(folder)
    return tokenizer.sha256, tokenizer.encode("Ba bo. So.")


def snapshot_of(folder):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved = Snapshots(folder.parent).find()
    if saved is None:
        raise Told(caught)
    tensors = {"weight": torch.zeros(2, 3), "step": torch.tensor(0)}
    saved.fill(tensors)
    return saved.progress, {name: tensor.tolist() for name, tensor in tensors.items()}


def evidence_of(folder):
    evidence = read_likelihood(folder / "likelihood.csv")
    return evidence, evidence.results.values(torch.ones(1, 2).numpy()).tolist()


KINDS = {
    "checkpoint": ("checkpoint-1", checkpoint_of),
    "tokens": ("tokens-1", tokens_of),
    "tokenizer": ("checkpoint-1", tokenizer_of),
    "snapshot": ("snapshot-2/step-00000004", snapshot_of),
    "evidence": ("evidence-2", evidence_of),
}


def flipped(path, draw):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def prove(kind, scratch, flips):
    """How many of this many flips were reported; fails at one that changes what is read. Every file has its turn."""
    name, read = KINDS[kind]
    folder = scratch / name
    reported = 0
    for turn in range(flips):
        draw = random.Random(turn)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(FORMATS, scratch)
        whole = read(folder)
        files = [p for p in sorted((scratch / name).rglob("*")) if p.is_file()]
        if kind == "tokenizer":
            files = [p for p in files if p.name.startswith("tokenizer")]
        flipped(files[turn % len(files)], draw)
        try:
            assert read(folder) == whole, f"{kind}: flip {turn} passed unnoticed"
        except (UserError, Told):
            reported += 1
    return reported


MANY = pytest.param(100, marks=pytest.mark.proof)


@pytest.mark.parametrize("flips", [8, MANY])
@pytest.mark.parametrize("kind", KINDS)
def test_bit_flip_is_reported_or_has_no_effect(tmp_path, table, kind, flips):
    reported = prove(kind, tmp_path / "formats", flips)
    table(f"a bit flipped: {kind}", flips, f"{reported} told, {flips - reported} without effect")
    assert reported >= 0.9 * flips


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "bytelevel"])
def test_damaged_tokenizer_is_refused_without_traceback(tmp_path, tokenizers, kind):
    tokenizer = tokenizers[kind]
    for turn in range(50):
        with atomic_folder(tmp_path / "x") as folder:
            (folder / tokenizer.file).write_bytes(tokenizer.data)
        flipped(tmp_path / "x" / tokenizer.file, random.Random(turn))
        with pytest.raises(UserError):
            open_tokenizer(tmp_path / "x")
        with contextlib.suppress(UserError):
            open_tokenizer(tmp_path / "x" / tokenizer.file)
