"""A biLM of allenai/bilm-tf, imported: its reference embeddings digit by digit, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.interchange.published_models import imported, section_of
from plm_core.text.tokenizers import BOS, EOS, UNK

h5py = pytest.importorskip("h5py")
FIXTURE = Path(__file__).parents[4] / "shared/data/bilm-fixture"
pytestmark = pytest.mark.skipif(not FIXTURE.is_dir(), reason=f"{FIXTURE} is not here")


@pytest.fixture
def folder(tmp_path):
    """The released fixture, with every word of its sentences in the vocabulary."""
    for name in ("lm_weights.hdf5", "options.json"):
        (tmp_path / name).write_bytes((FIXTURE / name).read_bytes())
    sentences = json.loads((FIXTURE / "lm_embeddings_sentences.json").read_text())
    words = sorted({word for part in sentences for sentence in part for word in sentence.split()})
    (tmp_path / "vocab.txt").write_text("\n".join(["<S>", *words, "</S>"]) + "\n")
    return tmp_path


@torch.no_grad()
def test_the_reference_embeddings_come_out(folder):
    """As in their test: ten batches of one sentence from each of three texts, each continuing the one before."""
    imported(str(folder), "made", folder)
    loaded = checkpoint.load(folder / "made")
    sentences = json.loads((FIXTURE / "lm_embeddings_sentences.json").read_text())
    files = [h5py.File(FIXTURE / f"lm_embeddings_{number}.hdf5") for number in range(3)]
    states = None
    for number in range(10):
        rows = [[BOS, *loaded.tokenizer.encode(part[number]), EOS] for part in sentences]
        assert UNK not in {token for row in rows for token in row}
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
        outputs, states = loaded.model.layers(ids, mask, states=states)
        assert len(outputs) == 3
        assert torch.equal(*outputs[0].chunk(2, -1))
        for row, file, ids_of in zip(outputs[2], files, rows, strict=True):
            expected = torch.from_numpy(file[str(number)][...])
            actual = torch.stack(row[1 : len(ids_of) - 1].chunk(2, -1))
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_an_imported_bilm_is_a_start_whose_softmax_was_drawn(folder):
    imported(str(folder), "made", folder)
    loaded = checkpoint.load(folder / "made")
    assert not loaded.config.predicts
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("Don 't ! nowhere")) == "Don 't !"
    section = section_of(folder / "made")
    assert section["architecture"] == "elmo"
    assert section["model"]["filters"] == [[1, 4], [2, 8], [3, 16], [4, 32], [5, 64]]
    assert loaded.model.characters[[BOS, EOS], 1].tolist() == [257, 258]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o: o["char_cnn"]["filters"].pop(),
            r"hdf5: words\.project\.weight is of shape \[16, 124\]; expected .*\[16, 60\] by",
        ),
        (
            lambda o: o["char_cnn"]["filters"].append([6, 7]),
            r"hdf5: does not fit options\.json \(lacks 'CNN/W_cnn_5'\)",
        ),
        (
            lambda o: o["lstm"].update(dim=48),
            r"\.read\.weight is of shape \[256, 16\]; expected .*\[192, 16\] by options",
        ),
        (lambda o: o["lstm"].update(n_layers=1), r"hdf5: contains RNN_0/RNN/.*/Cell1/LSTMCell/B, which options\.json"),
        (lambda o: o.pop("char_cnn"), r"options\.json: lacks 'char_cnn'; expected the options of a biLM"),
        (lambda o: o["char_cnn"].update(activation="gelu"), r"model\.activation: found the text 'gelu'; expected"),
    ],
)
def test_options_that_do_not_fit_the_weights_are_refused(folder, change, message):
    options = json.loads((folder / "options.json").read_text())
    change(options)
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(UserError, match=message):
        imported(str(folder), "made", folder)


def test_a_missing_or_broken_file_is_refused(folder):
    (folder / "vocab.txt").write_text("a\nb\na\n")
    with pytest.raises(UserError, match=r"vocab\.txt: has 'a' twice"):
        imported(str(folder), "made", folder)
    (folder / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"vocab\*\.txt: 0 files; expected one"):
        imported(str(folder), "made", folder)
    shutil.copy(folder / "options.json", folder / "vocab.txt")
    (folder / "lm_weights.hdf5").write_bytes(b"none")
    with pytest.raises(UserError, match=r"lm_weights\.hdf5: not an HDF5 file"):
        imported(str(folder), "made", folder)
