"""Who sees whom, by gradients: exactly zero from a token that must not be seen, and not zero from one that must.

Every test differentiates the output at one position with respect to the embedding at every position.
"""

import pytest
import torch

from plm_core.models.xlnet import left_to_right

T, V = 7, 99


def ids(rows=1, length=T, seed=0):
    return torch.randint(7, V, (rows, length), generator=torch.Generator().manual_seed(seed))


def reach(model, forward):
    """What ``forward()`` [B, N, D] sees of row 0's tokens: for each output a list of the positions with a gradient."""
    embeddings = []

    def embedded_as_leaf(module, arguments, output):
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    hook = model.tokens.register_forward_hook(embedded_as_leaf)
    try:
        hidden = forward()
    finally:
        hook.remove()
    (embedded,) = embeddings
    seen = []
    for output in hidden[0]:
        # Not a plain sum: a layer normalisation makes that a constant.
        value = (output * torch.arange(1.0, 1 + len(output), dtype=output.dtype)).sum()
        (gradient,) = torch.autograd.grad(value, embedded, retain_graph=True, allow_unused=True)
        rows = torch.zeros(T) if gradient is None else gradient.abs().sum(-1)
        assert not rows[1:].any(), "another row is seen"
        seen.append(rows[0].nonzero().flatten().tolist())
    return seen


DECODERS = pytest.mark.parametrize("paper", ["gpt", "llama"])


@DECODERS
def test_a_decoder_sees_its_own_token_and_those_before(make, paper):
    model = make(paper)
    assert reach(model, lambda: model(ids(3))) == [list(range(t + 1)) for t in range(T)]


@DECODERS
def test_a_decoder_sees_no_padding(make, paper):
    model = make(paper)
    attention_mask = torch.tensor([[0, 0, 1, 1, 1, 0, 1]], dtype=torch.bool)
    seen = reach(model, lambda: model(ids(), attention_mask))
    assert [seen[t] for t in (2, 3, 4, 6)] == [[2], [2, 3], [2, 3, 4], [2, 3, 4, 6]]


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 2, 2, 2], [0, 0, 1, 1, 1, 1, 1], [5, 5, 5, 5, 5, 5, 5]])


@DECODERS
def test_a_decoder_sees_its_own_document_up_to_its_own_token(make, paper):
    model = make(paper)
    seen = reach(model, lambda: model.read(ids(3), documents=DOCUMENTS))
    assert seen == [[0], [0, 1], [0, 1, 2], [3], [4], [4, 5], [4, 5, 6]]


@DECODERS
def test_a_decoder_sees_all_in_the_rows_that_it_reads_in_both_directions(make, paper):
    model = make(paper)
    both, others = torch.tensor([True, False, False]), torch.tensor([False, True, True])
    whole, before = [list(range(T))] * T, [list(range(t + 1)) for t in range(T)]
    assert reach(model, lambda: model.read(ids(3), bidirectional=both)) == whole
    assert reach(model, lambda: model.read(ids(3), bidirectional=others)) == before
    of_documents = [[0, 1, 2]] * 3 + [[3]] + [[4, 5, 6]] * 3
    assert reach(model, lambda: model.read(ids(3), documents=DOCUMENTS, bidirectional=both)) == of_documents
    seen = reach(model, lambda: model.read(ids(3), documents=DOCUMENTS, bidirectional=others))
    assert seen == [[0], [0, 1], [0, 1, 2], [3], [4], [4, 5], [4, 5, 6]]
    attention_mask = torch.tensor([[0, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    seen = reach(model, lambda: model.read(ids(), attention_mask, bidirectional=both[:1]))
    assert seen[1:5] == [[1, 2, 3, 4]] * 4


@pytest.mark.parametrize("paper", ["bert", "modernbert"])
def test_an_encoder_sees_all_but_padding_and_other_documents(make, paper):
    model = make(paper)
    assert reach(model, lambda: model(ids(3))) == [list(range(T))] * T
    seen = reach(model, lambda: model(ids(3), documents=DOCUMENTS))
    assert seen == [[0, 1, 2]] * 3 + [[3]] + [[4, 5, 6]] * 3
    attention_mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    assert reach(model, lambda: model(ids(), attention_mask=attention_mask))[:5] == [list(range(5))] * 5


def test_modernbert_sees_a_window_where_it_does_not_see_all(make):
    """In one layer: the others add nothing."""
    model = make("modernbert", window=2)
    for i, block in enumerate(model.blocks):
        if i != 1:
            torch.nn.init.zeros_(block.attention.out.weight)
    assert reach(model, lambda: model(ids(3))) == [[t for t in range(T) if abs(t - i) <= 1] for i in range(T)]
    seen = reach(model, lambda: model(ids(3), documents=DOCUMENTS))
    assert seen == [[0, 1], [0, 1, 2], [1, 2], [3], [4, 5], [4, 5, 6], [5, 6]]
    attention_mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    assert reach(model, lambda: model(ids(), attention_mask=attention_mask))[3:5] == [[2, 3, 4], [3, 4]]


ORDERS = {
    "left to right": [0, 1, 2, 3, 4, 5, 6],
    "right to left": [6, 5, 4, 3, 2, 1, 0],
    "a permutation": [3, 0, 6, 1, 5, 2, 4],
    "context and targets": [0, 0, 3, 0, 1, 2, 0],
    "targets that share a place": [0, 1, 1, 0, 2, 2, 2],
    "all alike": [5, 5, 5, 5, 5, 5, 5],
    "gaps and padding": [0, 9, 4, 4, 99, 99, 99],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("segments", [None, [[0, 0, 0, 1, 1, 1, 2]]], ids=["no segments", "segments"])
def test_both_streams_of_xlnet_see_what_the_order_says(make, order, segments):
    model, segments = make("xlnet"), None if segments is None else torch.tensor(segments)
    places = torch.tensor([order])
    queries = torch.tensor([[5, 0, 3, 6, 1, 2, 4]])
    content = [[j for j in range(T) if order[j] <= order[i]] for i in range(T)]
    assert reach(model, lambda: model(ids(), places, segments).content) == content
    query = [[j for j in range(T) if order[j] < order[i]] for i in queries[0].tolist()]
    assert reach(model, lambda: model(ids(), places, segments, queries=queries).query) == query


def test_both_streams_of_xlnet_see_the_documents_that_they_stand_in(make):
    """A document ends with the token that says so. The memory belongs to the first."""
    model, memory = make("xlnet"), make("xlnet").read_with_memory(ids(seed=1))[1]
    documents = model.documents_between(torch.tensor([[0, 0, 1, 1, 0, 0, 1]], dtype=torch.bool))
    assert documents.following.tolist() == [3]
    queries = torch.tensor([[5, 0, 3, 6, 1, 2, 4]])
    number, order = [0, 0, 0, 1, 2, 2, 2], ORDERS["a permutation"]
    own = [[j for j in range(T) if number[j] == number[i]] for i in range(T)]

    def hidden(memory=None):
        return model(ids(), torch.tensor([order]), memory=memory, queries=queries, documents=documents)

    content = [[j for j in own[i] if order[j] <= order[i]] for i in range(T)]
    assert reach(model, lambda: hidden().content) == content
    query = [[j for j in own[i] if order[j] < order[i]] for i in queries[0].tolist()]
    assert reach(model, lambda: hidden().query) == query
    with torch.no_grad():
        alone, behind = hidden(), hidden(memory)
        for left, right, first in (
            (alone.content, behind.content, [True] * 3 + [False] * 4),
            (alone.query, behind.query, [place < 3 for place in queries[0].tolist()]),
        ):
            assert ((left - right).abs().amax(-1)[0] > 1e-9).tolist() == first  # what is masked rounds otherwise


def test_xlnet_reads_left_to_right_and_encodes_in_both_directions(make):
    model = make("xlnet")
    assert reach(model, lambda: model.read(ids(3))) == [list(range(t + 1)) for t in range(T)]
    assert reach(model, lambda: model.encode(ids(3))) == [list(range(T))] * T
    attention_mask = torch.tensor([[0, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    assert reach(model, lambda: model.encode(ids(), attention_mask=attention_mask))[1:5] == [[1, 2, 3, 4]] * 4
    assert reach(model, lambda: model.read(ids(), attention_mask))[1:5] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize("stream", ["content", "query"])
def test_memory_is_seen_by_every_position_and_gets_no_gradient(make, stream):
    model = make("xlnet")
    first = ids(seed=1)
    embedded = []
    hook = model.tokens.register_forward_hook(lambda m, a, output: embedded.append(output))
    _, memory = model.read_with_memory(first)
    hook.remove()
    assert not memory.states.requires_grad
    assert not model(first).states.requires_grad

    def output(memory):
        order, queries = left_to_right(torch.ones(1, T, dtype=torch.bool)), torch.arange(T)[None]
        return getattr(model(ids(), order, memory=memory, queries=queries), stream)

    with torch.no_grad():
        for position in range(T):
            states = memory.states.clone()
            states[:, :, position] += 1e-3
            moved = (output(memory._replace(states=states)) - output(memory)).abs().amax(-1)[0]
            assert (moved > 0).all(), position
        hidden = memory.attention_mask.clone()
        hidden[0, 2] = False
        states = memory.states.clone()
        states[:, :, 2] = 99.0
        assert torch.equal(
            output(memory._replace(attention_mask=hidden)),
            output(memory._replace(attention_mask=hidden, states=states)),
        )
    value = output(memory).square().sum()
    assert torch.autograd.grad(value, embedded[0], allow_unused=True) == (None,)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16 autocast"])
def test_a_query_that_sees_nothing_is_finite_with_finite_gradients(make, kind, training):
    """The first place of an order without memory: what is predicted there is the same whatever the text says."""
    model = make("xlnet", dtype=torch.float64 if kind == "float64" else torch.float32, dropout=0.1 * training)
    model.train(training)
    order, queries = torch.tensor([ORDERS["a permutation"]]), torch.tensor([[1, 3]])
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in kind):
        query = model(ids(), order, queries=queries).query
        logits = model.logits(query)
    assert query.isfinite().all()
    logits.float().square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.unknown.grad.any()
    if not training:
        other = model(ids(seed=2), order, queries=queries).query
        if "autocast" not in kind:
            assert torch.equal(other[:, 0], query[:, 0])
            assert not torch.equal(other[:, 1], query[:, 1])
