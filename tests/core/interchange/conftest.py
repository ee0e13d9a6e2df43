"""A checkpoint of every family and of every kind of tokenizer, and its export, made once."""

import pytest
from saved import save

from plm_core.interchange import FAMILIES, export_hf

PAIRS = [
    ("gpt", "bpe"),
    ("gpt", "bytelevel"),
    ("llama", "bpe"),
    ("llama", "bytelevel"),
    ("bert", "bpe"),
    ("bert", "wordpiece"),
    ("modernbert", "bpe"),
    ("modernbert", "wordpiece"),
    ("xlnet", "unigram"),
    ("t5", "bpe"),
]
assert {family for family, _ in PAIRS} == set(FAMILIES)


@pytest.fixture(scope="session", params=PAIRS, ids="-".join)
def exported(request, device, tokenizers, tmp_path_factory):
    """The name of a family, the folder of a checkpoint of it, and the folder of its export."""
    family, kind = request.param
    folder = tmp_path_factory.mktemp(family)
    save(folder / "checkpoint", family, tokenizers[kind])
    export_hf(folder / "checkpoint", folder / "hf")
    return family, folder / "checkpoint", folder / "hf"
