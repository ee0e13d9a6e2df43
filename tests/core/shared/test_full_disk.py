"""A full disk, whoever writes, is one OSError that names the file, and what was there before stays as it was."""

import contextlib
import errno
import json
import resource

import pytest
import torch

from plm_core import checkpoint
from plm_core.corpus.document import write_documents
from plm_core.corpus.removals import Quarantined, quarantine_writer
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.shared.files import atomic_folder, atomic_text
from plm_core.text.token_store import write_store
from plm_core.training.snapshot import NotSaved, Snapshots


@contextlib.contextmanager
def no_room():
    """The kernel refuses files of more than a hundred bytes, as a full disk refuses all."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def saved(path, tokenizer, documents):
    weights = {"weight": torch.ones(37, 37)}
    config = checkpoint.CheckpointConfig(checkpoint.FORMAT, "gpt", "causal", {}, tokenizer.sha256, 1, 1.0)
    checkpoint.save(path, weights, tokenizer, config)


def tokens(path, tokenizer, documents):
    write_store(path, ((d.id, d.text) for d in documents), tokenizer)


def table(path, tokenizer, documents):
    write_documents(path, documents)


def quarantine(path, tokenizer, documents):
    with quarantine_writer(path) as refuse:
        for i in range(99):
            refuse(Quarantined(f"x:{i}", "broken_json", "detail", "excerpt"))


def vocabulary(path, tokenizer, documents):
    with atomic_folder(path) as folder:
        (folder / tokenizer.file).write_bytes(tokenizer.data)


def metrics(path, tokenizer, documents):
    atomic_text(path, json.dumps({str(i): i for i in range(99)}))


def evidence(path, tokenizer, documents):
    write_sealed(path, ("id", "text"), ((d.id, d.text) for d in documents))


@pytest.mark.parametrize("write", [saved, tokens, table, quarantine, vocabulary, metrics, evidence])
def test_full_disk_is_one_line_that_names_the_file(tmp_path, tokenizer, documents, write):
    path = tmp_path / "sub/x"
    write(path, tokenizer, documents)
    before = contents(tmp_path)
    with no_room(), pytest.raises(OSError, match=r"^\[Errno 27\] File too large: '.*sub/[^']*x[^']*'$") as raised:
        write(path, tokenizer, documents)
    assert raised.value.errno == errno.EFBIG
    assert contents(tmp_path) == before


def test_full_disk_during_snapshot_names_the_last_good_one(tmp_path):
    snapshots = Snapshots(tmp_path / "x")
    snapshots.save({"weight": torch.ones(37, 37)}, {}, {"step": 1, "rollbacks": []}, 1)
    snapshots.wait()
    with no_room():
        snapshots.save({"weight": torch.ones(37, 37)}, {}, {"step": 2, "rollbacks": []}, 1)
        with pytest.raises(NotSaved, match=r"x: snapshot not written \(.*File too large.*\); .*step-00000001$"):
            snapshots.wait()
    assert [path.name for path in sorted((tmp_path / "x").iterdir())] == ["step-00000001"]


def test_errors_other_than_full_disk_are_unchanged(tmp_path):
    for error in (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ValueError("errno of nothing")):
        with pytest.raises(type(error)) as raised, atomic_folder(tmp_path / "x"):
            raise error
        assert raised.value is error
