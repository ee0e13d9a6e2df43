"""What a model cannot compute is a ValueError that names the field and both values."""

import pytest
import torch

from plm_core.config import UserError, from_dict
from plm_core.configs.architectures import MODELS
from plm_core.models.kv_cache import KVCache

B, T = 5, 7


def ids(rows=B, length=T):
    return torch.full((rows, length), 42)


@pytest.mark.parametrize("paper", MODELS)
def test_a_sequence_longer_than_the_positions_is_refused(make, paper):
    model = make(paper)
    assert model.encode(ids(length=17)).shape[1] == 17
    with pytest.raises(ValueError, match=r"^context: a sequence of 18 tokens is longer than the 17 positions"):
        model.encode(ids(length=18))


@pytest.mark.parametrize("paper", ["gpt", "llama"])
def test_cached_tokens_count_towards_the_positions(make, paper):
    cache = KVCache(make(paper))
    cache.read(ids(length=13))
    with pytest.raises(ValueError, match=r"^context: a sequence of 18 tokens is longer than the 17 positions"):
        cache.read(ids(length=5))
    assert cache.read(ids(length=4)).shape[1] == 4


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


@pytest.mark.parametrize("paper", ["gpt", "llama", "bert", "modernbert", "elmo"])
def test_documents_that_do_not_fit_the_ids_are_refused(make, paper):
    model, first = make(paper), ids() * 0
    read = getattr(model, "read", model)
    assert torch.equal(read(ids(), documents=first), read(ids()))
    with pytest.raises(ValueError, match=r"^documents: shape \(5, 6\); expected that of the ids \(5, 7\)"):
        read(ids(), documents=first[:, 1:])
    falling = first.clone()
    falling[3, :2] = 1
    with pytest.raises(ValueError, match=r"^documents: a number is smaller than the one before it"):
        read(ids(), documents=falling)
    with pytest.raises(ValueError, match=r"^documents: given together with attention_mask"):
        read(ids(), attention_mask=torch.ones_like(first, dtype=torch.bool), documents=first)


@pytest.mark.parametrize("paper", ["gpt", "llama"])
def test_rows_read_in_both_directions_are_one_value_each(make, paper):
    model, both = make(paper), torch.ones(B, dtype=torch.bool)
    assert model.read(ids(), bidirectional=both).shape[:2] == (B, T)
    with pytest.raises(ValueError, match=r"^bidirectional: shape \(4,\); expected .* each of the 5 rows"):
        model.read(ids(), bidirectional=both[1:])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rows": 3}, "holds 3 rows; expected the 5 rows of the ids"),
        ({"layers": 1}, "has 1 layers and width 30; expected layers 2 and width 30"),
        ({"width": 36}, "has 2 layers and width 36; expected layers 2 and width 30"),
    ],
)
def test_a_memory_of_another_shape_is_refused(make, other, message):
    rows = other.pop("rows", B)
    _, memory = make("xlnet", **other).read_with_memory(ids(rows))
    with pytest.raises(ValueError, match=f"^memory: {message}"):
        make("xlnet").read_with_memory(ids(), memory=memory)


SHAPE = {"vocab_size": 99, "context": 17, "layers": 2, "heads": 3, "width": 30}


@pytest.mark.parametrize(
    ("papers", "change", "message"),
    [
        ([name for name in MODELS if name != "elmo"], {"heads": 7}, r"^m\.heads: 7 does not divide width 30"),
        (
            ["llama", "modernbert"],
            {"heads": 2},
            r"^m\.heads: 2 in width 30 have 15 dimensions each; expected an even number",
        ),
        (["llama"], {"kv_heads": 2}, r"^m\.kv_heads: 2 does not divide heads 3"),
        (["llama"], {"rope_factor": 4}, r"^m\.rope_factor: 4 with rope_context None; expected both"),
        (["xlnet"], {"width": 21}, r"^m\.width: 21; expected an even number"),
    ],
)
def test_invalid_model_sizes_are_refused(papers, change, message):
    for paper in papers:
        from_dict(MODELS[paper].config, SHAPE, "m")
        with pytest.raises(UserError, match=message):
            from_dict(MODELS[paper].config, SHAPE | change, "m")
