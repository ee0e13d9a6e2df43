"""What a model cannot compute is a ValueError that names the field and both values."""

import pytest
import torch

from plm_core.config import UserError, from_dict
from plm_core.sections.models import MODELS

B, T = 5, 7
READERS = pytest.mark.parametrize("paper", ["gpt", "llama", "xlnet"])


def ids(rows=B, length=T):
    return torch.full((rows, length), 42)


@pytest.mark.parametrize("paper", MODELS)
def test_a_sequence_longer_than_the_positions_is_refused(make, paper):
    model = make(paper)
    assert model.encode(ids(length=17)).shape[1] == 17
    with pytest.raises(ValueError, match=r"^context: a sequence of 18 tokens is longer than the 17 positions"):
        model.encode(ids(length=18))


@pytest.mark.parametrize("paper", ["gpt", "llama"])
def test_what_a_decoder_has_read_counts_towards_its_positions(make, paper):
    model = make(paper)
    _, state = model.read(ids(length=13))
    assert model.read(ids(length=4), state=state)[0].shape[1] == 4
    with pytest.raises(ValueError, match=r"^context: a sequence of 18 tokens is longer than the 17 positions"):
        model.read(ids(length=5), state=state)


@pytest.mark.parametrize("paper", MODELS)
@pytest.mark.parametrize("wrong", [99, 1000, -1])
def test_an_id_outside_the_vocabulary_is_refused(make, paper, wrong):
    tokens = ids()
    tokens[2, 3] = 98
    make(paper).encode(tokens)
    tokens[2, 3] = wrong
    with pytest.raises(ValueError, match=rf"^vocab_size: the id {wrong} is not .*99; expected 0 to 98"):
        make(paper).encode(tokens)


@pytest.mark.parametrize("wrong", [2, -1])
def test_a_segment_without_an_embedding_is_refused(make, wrong):
    segments = torch.ones_like(ids())
    make("bert").encode(ids(), segments)
    segments[4, 0] = wrong
    with pytest.raises(ValueError, match=rf"^segments: the id {wrong} is not .*2; expected 0 to 1"):
        make("bert").encode(ids(), segments)


@pytest.mark.parametrize("paper", ["gpt", "llama", "bert", "modernbert"])
def test_documents_that_do_not_fit_the_ids_are_refused(make, paper):
    model, first = make(paper), ids() * 0
    read = getattr(model, "read", model)
    whole = read(ids(), documents=first)
    alone = read(ids())
    assert torch.equal(*(found if "bert" in paper else found[0] for found in (whole, alone)))
    with pytest.raises(ValueError, match=r"^documents: shape \(5, 6\); expected that of the ids \(5, 7\)"):
        read(ids(), documents=first[:, 1:])
    falling = first.clone()
    falling[3, :2] = 1
    with pytest.raises(ValueError, match=r"^documents: a number is smaller than the one before it"):
        read(ids(), documents=falling)
    with pytest.raises(ValueError, match=r"^documents: given together with attention_mask"):
        read(ids(), attention_mask=torch.ones_like(first, dtype=torch.bool), documents=first)


@pytest.mark.parametrize("paper", ["gpt", "llama"])
def test_rows_of_documents_are_continued_by_nothing(make, paper):
    model = make(paper)
    _, state = model.read(ids(), documents=ids() * 0)
    assert state is None
    _, state = model.read(ids())
    with pytest.raises(ValueError, match=r"^documents: given together with attention_mask or state"):
        model.read(ids(), state=state, documents=ids() * 0)


@pytest.mark.parametrize("paper", ["gpt", "llama"])
def test_rows_read_in_both_directions_are_one_value_each_and_continue_nothing(make, paper):
    model, both = make(paper), torch.ones(B, dtype=torch.bool)
    _, state = model.read(ids())
    with pytest.raises(ValueError, match=r"^bidirectional: given together with state; expected no state"):
        model.read(ids(), state=state, bidirectional=both)
    with pytest.raises(ValueError, match=r"^bidirectional: shape \(4,\); expected .* each of the 5 rows"):
        model.read(ids(), bidirectional=both[1:])
    for more in ({}, {"documents": ids() * 0}):
        assert model.read(ids(), bidirectional=both, **more)[1] is None


@READERS
def test_a_state_of_other_rows_is_refused(make, paper):
    model = make(paper)
    _, state = model.read(ids(rows=3))
    with pytest.raises(ValueError, match=r"^(state|memory): holds 3 rows; expected the 5 rows of the ids"):
        model.read(ids(), state=state)


@READERS
@pytest.mark.parametrize("layers", [1, 3])
def test_a_state_of_other_layers_is_refused(make, paper, layers):
    _, state = make(paper, layers=layers).read(ids())
    with pytest.raises(ValueError, match=rf"^(state|memory): has {layers} layers.* expected layers 2"):
        make(paper).read(ids(), state=state)


def test_a_memory_of_another_width_is_refused(make):
    _, memory = make("xlnet", width=36).read(ids())
    with pytest.raises(ValueError, match=r"^memory: has 2 layers and width 36; expected layers 2 and width 30"):
        make("xlnet").read(ids(), state=memory)


SHAPE = {"vocab_size": 99, "context": 17, "layers": 2, "heads": 3, "width": 30}


@pytest.mark.parametrize(
    ("papers", "change", "message"),
    [
        (MODELS, {"heads": 7}, r"^m\.heads: 7 does not divide width 30"),
        (MODELS, {"layers": 0}, r"^m\.layers: found 0; expected above 0"),
        (MODELS, {"context": -3}, r"^m\.context: found -3; expected above 0"),
        (MODELS, {"dropout": 1.0}, r"^m\.dropout: found 1\.0; expected below 1"),
        (MODELS, {"initializer_range": 0.0}, r"^m\.initializer_range: found 0\.0; expected above 0"),
        (
            ["llama", "modernbert"],
            {"heads": 2},
            r"^m\.heads: 2 in width 30 have 15 dimensions each; expected an even number",
        ),
        (["llama"], {"kv_heads": 2}, r"^m\.kv_heads: 2 does not divide heads 3"),
        (["llama"], {"kv_heads": 0}, r"^m\.kv_heads: found 0; expected above 0"),
        (["llama", "modernbert"], {"inner": 0}, r"^m\.inner: found 0; expected above 0"),
        (["llama"], {"rope_base": 0.0}, r"^m\.rope_base: found 0\.0; expected above 0"),
        (["modernbert"], {"global_every": 0}, r"^m\.global_every: found 0; expected above 0"),
        (["modernbert"], {"window": 0}, r"^m\.window: found 0; expected above 0"),
        (["bert"], {"segments": 0}, r"^m\.segments: found 0; expected above 0"),
        (["xlnet"], {"width": 21}, r"^m\.width: 21; expected an even number"),
        (["xlnet"], {"memory": -1}, r"^m\.memory: found -1; expected at least 0"),
    ],
)
def test_sizes_that_make_no_model_are_refused(papers, change, message):
    for paper in papers:
        from_dict(MODELS[paper].config, SHAPE, "m")
        with pytest.raises(UserError, match=message):
            from_dict(MODELS[paper].config, SHAPE | change, "m")
