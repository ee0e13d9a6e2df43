"""What was written once can be read, or is refused in one line that says what to do: ``formats`` holds files of each
version, written by it. When a format changes, add files of the new one and say here what becomes of the old.
"""

import json
import shutil
from pathlib import Path

import pytest

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.evaluation import sealed_csv
from plm_core.evaluation.evidence import read_likelihood
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.shared.files import write_checksums
from plm_core.text import token_store
from plm_core.text.token_store import TokenStore

FORMATS = Path(__file__).with_name("formats")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the files that may be written to."""
    shutil.copytree(FORMATS, tmp_path / "formats")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "formats"


def restated(path, **fields):
    """Change fields of a JSON file, and sign its folder again."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    write_checksums(path.parent)


def test_format_versions_are_pinned():
    today = (checkpoint.FORMAT, token_store.FORMAT, sealed_csv.FORMAT)
    assert today == (1, 1, 2), "a format has changed: add files of it to the folder, and a test of them here"


def test_a_checkpoint_of_format_1(old):
    loaded = checkpoint.load(old / "checkpoint-1")
    assert loaded.digest == "e24f8ccae6a2b495abc9fcb80f6fe1ddab4d012c4d67ff315d87dd4134695182"
    assert (loaded.config.architecture, loaded.config.step, loaded.config.valid_nats) == ("gpt", 7, 2.5)
    assert loaded.tokenizer.encode("Ba bo.") == [8, 50, 21, 61, 7]
    restated(old / "checkpoint-1/config.json", format=2)
    with pytest.raises(UserError, match=r"config\.json\.format: found 2; expected 1: use the version that wrote it"):
        checkpoint.load(old / "checkpoint-1")


def test_a_token_store_of_format_1(old):
    store = TokenStore(old / "tokens-1")
    assert [document.tolist() for document in store.documents()] == [[8, 50, 21, 61, 7, 3], [17, 61, 7, 3]]
    assert (store.ids([0, 1]), store.bytes.tolist()) == (["a", "b"], [6, 3])
    restated(old / "tokens-1/index.json", format=2)
    with pytest.raises(UserError, match=r"index\.json\.format: found 2; expected 1: run `dvc repro pack`"):
        TokenStore(old / "tokens-1")


def test_evidence_of_format_2(old):
    path = old / "evidence-2/likelihood.csv"
    assert read_likelihood(path).ids == ["a", "b"]
    path.write_text(path.read_text().replace("format_2", "format_3"))
    with pytest.raises(UserError, match="is of format 3; expected 2: evaluate the model with this version"):
        read_likelihood(path)


def test_current_formats_write_the_stored_bytes(old):
    """Equal content gives equal bytes, so that a change of a format cannot pass unnoticed."""
    loaded = checkpoint.load(old / "checkpoint-1")
    checkpoint.save(old / "again", loaded.model.state_dict(), loaded.tokenizer, loaded.config)
    assert {p.name: p.read_bytes() for p in (old / "again").iterdir()} == {
        p.name: p.read_bytes() for p in (old / "checkpoint-1").iterdir()
    }
    header, *rows = (line.split(",")[:-1] for line in (old / "evidence-2/likelihood.csv").read_text().splitlines())
    write_sealed(old / "x.csv", header, rows)
    assert (old / "x.csv").read_bytes() == (old / "evidence-2/likelihood.csv").read_bytes()
