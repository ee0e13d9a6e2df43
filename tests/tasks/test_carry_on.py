"""A night carries on from the model of the night before, if there is new text and a model that fits."""

import json

import numpy as np
import pytest

from plm_core import checkpoint
from plm_core.shared.paths import READ
from plm_core.text.replay import document_keys, new_and_replayed
from plm_core.text.token_store import SomeDocuments, TokenStore

ANCESTOR = "artifacts/ancestors/models/gpt/checkpoint"


def night(project):
    """What follows from the sources; what ancestors, with the tokenizer, and pretrain print."""
    printed = {}
    for stage in ("ingest own", "clean", "deduplicate", "ancestors", "tokenizer own", "pack own", "pretrain gpt"):
        name, *arguments = stage.split()
        printed[name], _ = project.run(f"tasks.stages.{name}", *arguments)
    return printed["ancestors"] + printed["tokenizer"], printed["pretrain"]


def gpt(project):
    return checkpoint.load(project.root / "artifacts/models/gpt")


def add(project, name, texts):
    lines = (json.dumps({"key": f"{name}{i}", "text": text, "year": 1999}) for i, text in enumerate(texts))
    (project.root / f"data/{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def texts(documents):
    """Documents of words that occur in the others, but in no other order."""
    draw = np.random.default_rng(1)
    words = " ".join(document.text for document in documents).split()
    return ["\n\n".join(" ".join(draw.permutation(words)[:30]) for _ in range(6)) for _ in range(12)]


@pytest.mark.slow
def test_nights_carry_on_where_there_is_new_text(small, texts):
    small.change(pretrain__gpt__carry_on={"steps": 8, "replay": 0.5})
    kept, trained = night(small)
    assert "begins anew: there is no model to carry on from" in trained
    assert "tokenizer is" not in kept
    first = gpt(small)
    assert first.config.lineage.ancestor is None
    assert not (small.root / ANCESTOR).exists()

    # New text: fewer steps, which begin with the weights of the night before.
    add(small, "new", texts[:6])
    kept, trained = night(small)
    assert "gpt: carries on from artifacts/models/gpt" in kept
    assert "the tokenizer is kept: new text takes 1.0" in kept
    store = TokenStore(small.root / "artifacts/tokens/own/train")
    new = [name for name in store.ids(range(store.index.documents)) if name.startswith("own/new")]
    assert f"carries on from {first.digest[:12]}: {len(new)} new documents and " in trained
    second = gpt(small)
    assert second.config.lineage.ancestor == first.digest == checkpoint.load(small.root / ANCESTOR).digest
    assert second.config.step <= 8
    read = np.load(small.root / "artifacts/models/gpt" / READ)
    assert set(document_keys(store).tolist()) <= set(read.tolist())
    shown, _ = small.run("tasks.commands.seen", "gpt", "--step", "8")
    assert "step 8 of 8" in shown
    assert "seen.step: 9; expected 1 to 8" in small.run("tasks.commands.seen", "gpt", "--step", "9", code=2)[1]

    # The same text again: the ancestor stays, and so training again gives the same bytes.
    before = small.files("artifacts/models/gpt")
    assert "carries on" not in small.run("tasks.stages.ancestors")[0]
    small.run("tasks.stages.pretrain", "gpt")
    assert small.files("artifacts/models/gpt") == before

    # A night that was interrupted has no model: the next one carries on from the one before.
    (small.root / "artifacts/models/gpt").rename(small.root / "gone")
    add(small, "newer", texts[6:])
    kept, trained = night(small)
    assert f"gpt: carries on from {ANCESTOR}" in kept
    assert gpt(small).config.lineage.ancestor == first.digest

    # Text was taken away, and none is new: nothing is trained.
    (small.root / "data/newer.jsonl").unlink()
    third = gpt(small)
    _, trained = night(small)
    assert f"{third.digest[:12]} has read all documents: it is not trained" in trained
    assert gpt(small).digest == third.digest

    # After so many nights, one begins anew.
    small.change(pretrain__gpt__carry_on={"steps": 8, "replay": 0.5, "nights": 1})
    assert "begins anew: 1 in a row have carried on" in small.run("tasks.stages.pretrain", "gpt")[0]

    # A model of another size cannot carry on.
    small.change(pretrain__gpt__model__width=24)
    trained, _ = small.run("tasks.stages.pretrain", "gpt")
    assert f"begins anew: {ANCESTOR} is a model of another size" in trained

    # Text that the tokenizer has no pieces for: a new one, and with it a new model.
    small.change(pretrain__gpt__model__width=16, tokenizers__own__renew_above=1.02)
    add(small, "other", [text.translate({ord(a): ord(a) + 0x390 for a in "abdeik"}) for text in texts])
    kept, trained = night(small)
    assert "a new tokenizer: with the old one new text takes " in kept
    assert f"begins anew: {ANCESTOR} was made with another tokenizer" in trained


def test_replay_is_the_wanted_share_of_the_text(small):
    store = TokenStore(small.root / "artifacts/tokens/own/train")
    count = store.index.documents
    ancestor = small.root / "ancestor"
    ancestor.mkdir()
    np.save(ancestor / READ, np.sort(document_keys(store)[: count - 2]))
    sizes = np.diff(store.offsets)
    for replay in (0.0, 0.5, 0.8, 0.99):
        some, new = new_and_replayed(store, ancestor, replay, 1, seed=1)
        assert new == 2
        old = len(some) - int(sizes[-2:].sum())
        assert abs(old - min(sizes[:-2].sum(), sizes[-2:].sum() * replay / (1 - replay))) <= sizes.max()
    assert len(new_and_replayed(store, ancestor, 0.0, 10**9, seed=1)[0]) == len(store)
    first, second = (new_and_replayed(store, ancestor, 0.5, 1, seed)[0] for seed in (1, 2))
    assert first.ids(range(first.index.documents)) != second.ids(range(second.index.documents))


def test_some_documents_are_a_store_of_their_own(small):
    store = TokenStore(small.root / "artifacts/tokens/own/train")
    numbers = np.arange(1, store.index.documents, 3)
    some = SomeDocuments(store, numbers)
    expected = list(store.documents())
    assert some.ids(range(len(numbers))) == store.ids(numbers.tolist())
    whole = np.concatenate([expected[number] for number in numbers])
    np.testing.assert_array_equal(some.tokens(0, len(some)), whole)
    for place, tokens in enumerate(some.documents()):
        np.testing.assert_array_equal(tokens, expected[numbers[place]])
    starts = np.array([0, 5, len(some) - 40])
    np.testing.assert_array_equal(some.rows(starts, 40), [whole[start : start + 40] for start in starts])
    assert len(some.tokens(7, 7)) == 0
