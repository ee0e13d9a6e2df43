"""Padding changes nothing, and a text read in pieces is the text read at once."""

from itertools import pairwise

import pytest
import torch

from plm_core.models.kv_cache import KVCache
from plm_core.models.xlnet import Memory

B, T, V = 5, 11, 99
LENGTHS = torch.tensor([11, 7, 3, 9, 5])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
READERS = pytest.mark.parametrize("paper", ["gpt", "llama", "xlnet"])


def ids(seed=0, rows=B, length=T):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def continued(model):
    """Reads a text piece by piece, as generation does: ids and their mask to hidden states."""
    if hasattr(model, "states"):
        return KVCache(model).read
    memory = None

    def read(ids, attention_mask=None):
        nonlocal memory
        hidden, memory = model.read_with_memory(ids, attention_mask, memory)
        return hidden

    return read


def padded(side, garbage):
    """Rows of different lengths with garbage at one side, which positions are real, and the rows without padding."""
    places = torch.arange(T).expand(B, T)
    attention_mask = places < LENGTHS[:, None] if side == "right" else places >= T - LENGTHS[:, None]
    return (
        torch.where(attention_mask, ids(), garbage),
        attention_mask,
        [row[k][None] for row, k in zip(ids(), attention_mask, strict=True)],
    )


@READERS
@torch.no_grad()
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_on_either_side_changes_no_logits(make, paper, side):
    model = make(paper)
    for garbage in (0, 42, V - 1, ids(seed=1)):
        tokens, attention_mask, rows = padded(side, garbage)
        hidden = model.read(tokens, attention_mask)
        assert hidden.isfinite().all()
        for i, row in enumerate(rows):
            torch.testing.assert_close(hidden[i][attention_mask[i]], model.read(row)[0], **CLOSE)


@READERS
@torch.no_grad()
@pytest.mark.parametrize("pieces", [(11,), (1, 10), (4, 7), (3, 1, 2, 5), (1,) * 11])
def test_a_text_read_in_pieces_is_the_text_read_at_once(make, paper, pieces):
    model = make(paper)
    for attention_mask in (None, padded("left", 0)[1]):
        whole, read = model.read(ids(), attention_mask), continued(model)
        hidden = [
            read(ids()[:, part], None if attention_mask is None else attention_mask[:, part])
            for part in torch.arange(T).split(list(pieces))
        ]
        real = slice(None) if attention_mask is None else attention_mask
        torch.testing.assert_close(torch.cat(hidden, dim=1)[real], whole[real], **CLOSE)


@READERS
@torch.no_grad()
def test_a_batch_of_unequal_prompts_continues_as_each_alone(make, paper):
    """As generation and scoring do: prompts padded at the left, then the same number of tokens a row."""
    model = make(paper)
    tokens, attention_mask, rows = padded("left", 42)
    read = continued(model)
    read(tokens, attention_mask)
    following = read(ids(4, length=5))
    for i, row in enumerate(rows):
        alone = model.read(torch.cat((row, ids(4, length=5)[i : i + 1]), dim=1))
        torch.testing.assert_close(following[i], alone[0, -5:], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("kept", [0, 1, 4, 11])
def test_shortened_memory_equals_hidden_first_positions(make, kept):
    """In every layer: the memory's states have seen the whole text, its last positions keep what they saw."""
    model = make("xlnet")
    _, memory = model.read_with_memory(ids())
    hidden = memory._replace(attention_mask=memory.attention_mask & (torch.arange(T) >= T - kept))
    states, _ = model.read_with_memory(ids(1, length=5), memory=memory.last(kept))
    torch.testing.assert_close(states, model.read_with_memory(ids(1, length=5), memory=hidden)[0], **CLOSE)


@torch.no_grad()
def test_fully_masked_memory_is_no_memory(make):
    model = make("xlnet")
    _, memory = model.read_with_memory(ids())
    nothing = Memory(memory.states, torch.zeros_like(memory.attention_mask))
    torch.testing.assert_close(model.read_with_memory(ids(1), memory=nothing)[0], model.read(ids(1)), **CLOSE)
    assert (model.read_with_memory(ids(1), memory=memory)[0] - model.read(ids(1))).abs().max() > 1e-3
    empty = model.empty_memory(B, 7)
    torch.testing.assert_close(model.read_with_memory(ids(1), memory=empty)[0], model.read(ids(1)), **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("pieces", [(11,), (1, 10), (4, 7), (3, 1, 2, 5), (1,) * 11])
def test_packed_documents_are_read_as_each_alone(make, pieces):
    """Each begins with the token that ends the one before; the memory goes on with the last of a row."""
    model, ends = make("xlnet"), ids(7) % 4 == 0
    state, read = None, []
    for part in torch.arange(T).split(list(pieces)):
        hidden, state = model.read_with_memory(ids()[:, part], memory=state, ends=ends[:, part])
        read.append(hidden)
    assert 1 < int(ends.sum()) < B * T
    for row, states in enumerate(torch.cat(read, dim=1)):
        borders = sorted({0, *ends[row].nonzero().flatten().tolist(), T})
        for start, stop in pairwise(borders):
            alone = model.read(ids()[row : row + 1, start:stop])
            torch.testing.assert_close(states[start:stop], alone[0], **CLOSE)
