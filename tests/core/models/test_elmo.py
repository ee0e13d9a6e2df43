"""ELMo against plain torch, and what each direction sees."""

import pytest
import torch
from torch import nn

from plm_core.config import UserError, from_dict
from plm_core.configs.architectures import ELMoConfig
from plm_core.models.elmo import CharacterCNN, spelled

T, V = 7, 99


def ids(rows=3, length=T):
    return torch.randint(7, V, (rows, length), generator=torch.Generator().manual_seed(0))


def test_both_directions_are_the_lstms_of_torch(make):
    """Without clipping, both directions of both layers, and the state that a row is continued from."""
    model = make("elmo", cell_clip=None, projection_clip=None)
    (tokens, *expected), _ = model.layers(ids())
    reference = nn.LSTM(11, 23, batch_first=True, proj_size=11).double()
    for direction in (0, 1):
        x = tokens.chunk(2, -1)[direction].detach()
        for number, block in enumerate(model.blocks):
            lstm = block.lstms[direction]
            weights = (lstm.read.weight, lstm.recur.weight, lstm.read.bias, torch.zeros(92), lstm.project.weight)
            with torch.no_grad():
                for own, given in zip(reference.parameters(), weights, strict=True):
                    own.copy_(given)
            turned = x.flip(1) if direction else x
            y = reference(turned)[0]
            y = y.flip(1) if direction else y
            x = x + y if number else y
            torch.testing.assert_close(x, expected[number].chunk(2, -1)[direction])

    whole = model.read(ids())
    first, memory = model.read_with_memory(ids()[:, :3])
    rest, _ = model.read_with_memory(ids()[:, 3:], memory=memory)
    torch.testing.assert_close(torch.cat((first, rest), 1), whole)
    torch.testing.assert_close(torch.cat((whole, model.read_back(ids())), -1), model(ids()))


def test_cells_and_projections_are_clipped(make):
    model = make("elmo", cell_clip=0.05, projection_clip=0.03, residual=False)
    assert model(ids()).abs().amax() == 0.03
    wide, narrow = (make("elmo", cell_clip=clip, projection_clip=None)(ids()) for clip in (None, 0.05))
    assert not torch.allclose(wide, narrow, atol=0.01)


def test_the_vector_of_a_token_is_that_of_its_characters():
    """By the definition: every filter at every place, the largest value of each, highways, projection."""
    config = ELMoConfig(9, 5, 1, 6, characters=4, longest=6, filters=((1, 3), (3, 5)), highways=1, activation="tanh")
    cnn = CharacterCNN(config).double()
    row = torch.tensor(spelled(b"ab", True, 6))
    assert row.tolist() == [259, 98, 99, 260, 261, 261]
    assert spelled(b"abcdefgh", False, 6) == [98, 99, 100, 101, 102, 260]
    letters = cnn.letters.weight[row]
    columns = []
    for convolve in cnn.filters:
        width = convolve.kernel_size[0]
        for weight, bias in zip(convolve.weight, convolve.bias, strict=True):
            places = [(letters[i : i + width] * weight.T).sum() + bias for i in range(6 - width + 1)]
            columns.append(torch.stack(places).max().tanh())
    x = torch.stack(columns)
    (highway,) = cnn.highways
    gate = (highway.gate.weight @ x + highway.gate.bias).sigmoid()
    x = gate * (highway.transform.weight @ x + highway.transform.bias).relu() + (1 - gate) * x
    torch.testing.assert_close(cnn(row[None])[0], cnn.project.weight @ x + cnn.project.bias)


def test_pieces_are_read_by_their_characters(make):
    model = make("elmo")
    pieces = [(f"{token}".encode(), token % 2 == 0) for token in range(V)]
    pieces[20] = pieces[30] = (b"same", True)
    pieces[40] = (b"same", False)
    model.spell(pieces, ends=(2, 3))
    vectors = model.embed(torch.tensor([[20, 30, 40, 2, 3]]))[0]
    torch.testing.assert_close(vectors[0], vectors[1])
    torch.testing.assert_close(vectors[3], vectors[4])
    assert not torch.allclose(vectors[0], vectors[2])
    assert model.characters[2, :4].tolist() == [259, 258, 260, 261]


def seen(model, hidden_of, tokens):
    """For each position of row 0 the positions whose vectors its state depends on."""
    vectors = model.embed(tokens).detach().requires_grad_()
    model.embed = lambda _: vectors
    hidden = hidden_of(model)
    gradients = [torch.autograd.grad(h.sum(), vectors, retain_graph=True)[0] for h in hidden[0]]
    return [gradient[0].abs().sum(-1).nonzero().flatten().tolist() for gradient in gradients]


MASK = torch.tensor([[1, 1, 1, 1, 0, 0, 0]], dtype=torch.bool)
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 2, 2, 2]])


@pytest.mark.parametrize(
    ("hidden_of", "expected"),
    [
        (lambda m: m.read(ids(1)), [list(range(t + 1)) for t in range(T)]),
        (lambda m: m.read_back(ids(1)), [list(range(t, T)) for t in range(T)]),
        (lambda m: m.encode(ids(1)), [list(range(T))] * T),
        (lambda m: m.encode(ids(1), None, MASK)[:, :4], [[0, 1, 2, 3]] * 4),
        (lambda m: m.read(ids(1), MASK.flip(1))[:, 3:], [[3], [3, 4], [3, 4, 5], [3, 4, 5, 6]]),
        (lambda m: m(ids(1), documents=DOCUMENTS), [[0, 1, 2]] * 3 + [[3]] + [[4, 5, 6]] * 3),
        (lambda m: m.read(ids(1), documents=DOCUMENTS), [[0], [0, 1], [0, 1, 2], [3], [4], [4, 5], [4, 5, 6]]),
    ],
)
def test_each_direction_sees_its_own_side_of_a_document_without_padding(make, hidden_of, expected):
    assert seen(make("elmo"), hidden_of, ids(1)) == expected


def test_padding_and_other_documents_change_nothing(make):
    model, tokens = make("elmo"), ids(1)
    torch.testing.assert_close(model.encode(tokens, None, MASK)[:, :4], model.encode(tokens[:, :4]))
    packed = model(tokens, documents=DOCUMENTS)
    torch.testing.assert_close(packed[:, 4:], model(tokens[:, 4:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 21}, "width: 21; expected an even number"),
        ({"cells": 10}, "cells: 10; expected at least 11"),
        ({"filters": [[60, 3]]}, "filters: the widest is 60; expected .* none above 50"),
        ({"initial_embeddings": "neighbours"}, "initial_embeddings: found the text 'neighbours'; expected"),
        ({"heads": 2}, "heads: unknown parameter"),
    ],
)
def test_sizes_that_make_no_elmo_are_refused(change, message):
    sizes = {"vocab_size": 99, "context": 17, "layers": 2, "width": 22}
    with pytest.raises(UserError, match=message):
        from_dict(ELMoConfig, sizes | change, "m")
