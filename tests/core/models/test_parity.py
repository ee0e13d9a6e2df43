"""Each model computes what its reference in transformers computes: logits, loss and every parameter's gradient."""

import pytest
import torch
from compilers import pretend
from references import TOLERANCE, agree, agree_on_gradients, exactly, reference_of
from torch.nn import functional as F
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from plm_core.interchange import FAMILIES
from plm_core.models.blocks import document_positions, same_document
from plm_core.models.kv_cache import KVCache
from plm_core.models.xlnet import Memory
from plm_core.objectives.objective import IGNORED

B, T, V, M = 5, 11, 99, 4
LENGTHS = torch.tensor([11, 7, 3, 9, 5])[:, None]
DOCUMENTS = torch.tensor([[0] * 11, [0] * 5 + [1] * 6, [0, 1, 1, 4, 4, 4, 4, 4, 4, 7, 7]])
BOTH = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
GROUPS = [("llama", {"kv_heads": heads}) for heads in (6, 2, 1)]


def draws(seed):
    return torch.Generator().manual_seed(seed)


def ids(seed=0, rows=B, length=T, below=V):
    return torch.randint(below, (rows, length), generator=draws(seed))


@pytest.fixture
def pair(make):
    """Our model and the reference with the same random weights."""

    def made(paper, dtype, **sizes):
        ours = make(paper, seed=7, dtype=dtype, **sizes)
        return ours, reference_of(paper, ours, dtype)

    return made


def additive(seen, dtype):
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


@BOTH
@pytest.mark.parametrize(("paper", "sizes"), [("gpt", {}), ("gpt", {"norm": "post"}), *GROUPS], ids=str)
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_decoder_matches_its_reference(pair, dtype, paper, sizes, padding):
    ours, theirs = pair(paper, dtype, **sizes)
    places = torch.arange(T).expand(B, T)
    attention_mask = {"none": places >= 0, "right": places < LENGTHS, "left": places >= T - LENGTHS}[padding]
    # A label whose predecessor is padding is predicted from what sees nothing.
    predicted = attention_mask[:, 1:] & attention_mask[:, :-1]
    labels = torch.where(F.pad(predicted, (1, 0)), ids(), IGNORED)
    with exactly(dtype):
        expected = theirs(
            ids(),
            attention_mask=attention_mask.long(),
            position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0),
            labels=labels,
        )
        expected.loss.backward()
    logits = ours.logits(ours(ids(), None if padding == "none" else attention_mask))
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    agree(logits[attention_mask], expected.logits[attention_mask])
    agree(loss, expected.loss, "loss")
    loss.backward()
    agree_on_gradients(paper, ours, theirs)


@BOTH
@pytest.mark.parametrize("paper", ["gpt", "llama"])
@torch.no_grad()
def test_generation_matches_the_reference(pair, dtype, paper):
    ours, theirs = pair(paper, dtype)
    attention_mask = torch.arange(T) >= torch.tensor([0, 2, 5, 0, 1])[:, None]
    places = (attention_mask.cumsum(1) - 1).clamp(min=0)
    ours_cache, cache = KVCache(ours), None
    for part in torch.arange(T).split([6, 3, 1, 1]):
        until = int(part[-1]) + 1
        with exactly(dtype):
            expected = theirs(
                ids()[:, part],
                attention_mask=attention_mask[:, :until].long(),
                position_ids=places[:, part],
                past_key_values=cache,
                use_cache=True,
            )
        cache = expected.past_key_values
        hidden = ours_cache.read(ids()[:, part], attention_mask[:, part])
        real = attention_mask[:, part]
        agree(ours.logits(hidden)[real], expected.logits[real])
    heads = getattr(ours.config, "kv_heads", ours.config.heads)
    assert all(x.shape == (B, heads, T, ours.config.width // ours.config.heads) for x in ours_cache.layers[0].pair)


@BOTH
@pytest.mark.parametrize("paper", ["gpt", "llama"])
def test_packed_documents_match_the_reference(pair, dtype, paper):
    ours, theirs = pair(paper, dtype)
    assert document_positions(DOCUMENTS).max() == 10
    with exactly(dtype):
        expected = theirs(
            ids(rows=3),
            attention_mask=additive(same_document(DOCUMENTS).tril(), dtype),
            position_ids=document_positions(DOCUMENTS),
            use_cache=False,
        ).logits
        F.cross_entropy(expected.flatten(0, 1), ids(3, rows=3).flatten()).backward()
    logits = ours.logits(ours.read(ids(rows=3), documents=DOCUMENTS))
    agree(logits, expected)
    F.cross_entropy(logits.flatten(0, 1), ids(3, rows=3).flatten()).backward()
    agree_on_gradients(paper, ours, theirs)


@BOTH
def test_bert_is_bert_for_pretraining(pair, dtype):
    ours, theirs = pair("bert", dtype)
    segments, follows = ids(1, below=2), ids(2, rows=1, length=B, below=2)[0]
    attention_mask = torch.arange(T) < LENGTHS
    masked = (torch.rand(B, T, generator=draws(3)) < 0.4) & attention_mask
    with exactly(dtype):
        expected = theirs(
            ids(),
            attention_mask=attention_mask.long(),
            token_type_ids=segments,
            labels=torch.where(masked, ids(4), IGNORED),
            next_sentence_label=follows,
        )
        expected.loss.backward()
    hidden = ours(ids(), segments, attention_mask)
    next_sentence = ours.next_sentence(ours.pool(hidden))
    loss = F.cross_entropy(ours.logits(hidden[masked]), ids(4)[masked]) + F.cross_entropy(next_sentence, follows)
    agree(ours.logits(hidden)[attention_mask], expected.prediction_logits[attention_mask])
    agree(next_sentence, expected.seq_relationship_logits, "next sentence")
    agree(loss, expected.loss, "loss")
    loss.backward()
    agree_on_gradients("bert", ours, theirs)


@BOTH
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "sizes", [{}, {"window": 1}, {"global_every": 3}, {"global_every": 1}, {"window": 99}], ids=str
)
def test_modernbert_is_modernbert_for_masked_lm(pair, dtype, padded, sizes):
    ours, theirs = pair("modernbert", dtype, **sizes)
    attention_mask = torch.arange(T) < (LENGTHS if padded else torch.full((B, 1), T))
    masked = (torch.rand(B, T, generator=draws(3)) < 0.4) & attention_mask
    with exactly(dtype):
        expected = theirs(
            ids(),
            attention_mask=attention_mask.long() if padded else None,
            labels=torch.where(masked, ids(4), IGNORED),
        )
        expected.loss.backward()
    hidden = ours(ids(), attention_mask=attention_mask if padded else None)
    loss = F.cross_entropy(ours.logits(hidden[masked]), ids(4)[masked])
    agree(ours.logits(hidden)[attention_mask], expected.logits[attention_mask])
    agree(loss, expected.loss, "loss")
    loss.backward()
    agree_on_gradients("modernbert", ours, theirs)


@BOTH
@torch.no_grad()
def test_modernbert_packed_documents_match_the_reference(pair, dtype):
    ours, theirs = pair("modernbert", dtype)
    near = (torch.arange(T)[:, None] - torch.arange(T)).abs() <= 3
    seen = {"full_attention": same_document(DOCUMENTS), "sliding_attention": same_document(DOCUMENTS) & near}
    with exactly(dtype):
        masks = {name: additive(mask, dtype) for name, mask in seen.items()}
        expected = theirs(ids(rows=3), attention_mask=masks, position_ids=document_positions(DOCUMENTS)).logits
    agree(ours.logits(ours(ids(rows=3), documents=DOCUMENTS)), expected)


@BOTH
@torch.no_grad()
def test_modernbert_pooling_matches_the_reference(pair, dtype):
    ours, _ = pair("modernbert", dtype)
    theirs = ModernBertForSequenceClassification(
        ModernBertConfig(**FAMILIES["modernbert"].their_config(vars(ours.config)), num_labels=30)
    ).to(dtype)
    weights = FAMILIES["modernbert"].to_theirs(ours.state_dict(), vars(ours.config))
    lacking, unknown = theirs.load_state_dict(weights, strict=False)
    assert (set(lacking), set(unknown)) == ({"classifier.weight", "classifier.bias"}, {"decoder.bias"})
    torch.nn.init.eye_(theirs.classifier.weight)
    torch.nn.init.zeros_(theirs.classifier.bias)
    agree(ours.pool(ours.encode(ids())).float(), theirs.eval()(ids()).logits.float())


@pytest.mark.parametrize("paper", ["llama", "modernbert"])
def test_dropout_matches_the_reference(pair, monkeypatch, paper):
    """One seed here and there: as many numbers are drawn, in the same order, for the same activations."""
    ours, theirs = pair(paper, torch.float64, dropout=0.3)
    pretend(monkeypatch)  # attention as two products, as the reference has
    torch.manual_seed(5)
    logits = ours.train().logits(ours(ids()))
    torch.manual_seed(5)
    with exactly(torch.float64):
        expected = theirs.train()(ids()).logits
    agree(logits, expected)
    assert (logits - ours.eval().logits(ours(ids()))).abs().max() > 0.1


@BOTH
@pytest.mark.parametrize("parts", ["queries memory segments", "queries", "memory segments", "segments", "memory"])
def test_xlnet_matches_the_reference(pair, dtype, parts):
    """In an order in which some positions are context (place 0) and three of the others are queries."""
    ours, theirs = pair("xlnet", dtype)
    order = torch.stack([torch.randperm(T, generator=draws(i)) for i in range(B)])
    order = torch.where(order < 4, 0, order)
    queries = torch.stack([(row > 0).nonzero()[torch.randperm(7, generator=draws(9))[:3], 0] for row in order])
    context = order == 0
    hides = (order[:, None, :] >= order[:, :, None]) & ~(context[:, :, None] & context[:, None, :])
    arguments, kwargs = {}, {"perm_mask": hides.to(dtype), "use_mems": False}
    if "segments" in parts:
        arguments["segments"] = kwargs["token_type_ids"] = ids(1, below=3)
    if "memory" in parts:
        states = torch.randn(ours.config.layers, M, B, ours.config.width, generator=draws(5)).to(dtype)
        kwargs["mems"] = list(states)
        arguments["memory"] = Memory(states.permute(2, 0, 1, 3), torch.ones(B, M, dtype=torch.bool))
    targets = ids(4)
    if "queries" in parts:
        arguments["queries"], targets = queries, ids(4, length=3)
        kwargs["target_mapping"] = F.one_hot(queries, T).to(dtype)
    with exactly(dtype):
        expected = theirs(ids(), labels=targets, **kwargs)
        expected.loss.backward()
    hidden = ours(ids(), order, **arguments)
    logits = ours.logits(hidden.query if "queries" in parts else hidden.content)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    agree(logits, expected.logits)
    agree(loss, expected.loss, "loss")
    loss.backward()
    unreached = () if "queries" in parts else ("unknown",)
    unreached += () if "segments" in parts else ("segments", "segment_bias")
    agree_on_gradients("xlnet", ours, theirs, unreached)


@BOTH
@pytest.mark.parametrize("sizes", [{}, {"gated": True, "tied": False}], ids=["1.0", "1.1"])
def test_t5_matches_its_reference(pair, dtype, sizes):
    ours, theirs = pair("t5", dtype, vocab_size=99, first_sentinel=98, **sizes)
    if sizes:  # transformers ties these two whatever a configuration says, unless a file has both
        theirs.lm_head.weight = torch.nn.Parameter(ours.unembed.weight.detach().clone())
        theirs.shared.weight.data.copy_(ours.tokens.weight)
    attention_mask = torch.arange(T).expand(B, T) < LENGTHS
    written = ids(1, length=14)
    labels = torch.where(torch.arange(14) < LENGTHS + 2, ids(2, length=14), IGNORED)
    with exactly(dtype):
        expected = theirs(ids(), attention_mask=attention_mask.long(), decoder_input_ids=written, labels=labels)
        expected.loss.backward()
    logits = ours.logits(ours.decode(written, ours.encode(ids(), attention_mask=attention_mask), attention_mask))
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    agree(logits, expected.logits)
    agree(loss, expected.loss, "loss")
    agree_on_gradients("t5", ours, theirs)


@torch.no_grad()
def test_encoder_decoder_matches_the_layers_of_torch(make):
    """Without its final norms, which the paper has not."""
    ours = make("transformer")
    theirs = torch.nn.Transformer(21, 3, 2, 2, 50, 0.0, batch_first=True, dtype=torch.float64).eval()
    theirs.encoder.norm = theirs.decoder.norm = None
    for block, layer in zip(ours.blocks, [*theirs.encoder.layers, *theirs.decoder.layers], strict=True):
        pairs = [(block.attention, layer.self_attn)]
        pairs += [(block.cross, layer.multihead_attn)] if hasattr(block, "cross") else []
        for own, other in pairs:
            other.in_proj_weight.copy_(torch.cat((own.q.weight, own.k.weight, own.v.weight)))
            other.in_proj_bias.copy_(torch.cat((own.q.bias, own.k.bias, own.v.bias)))
            other.out_proj.load_state_dict(own.out.state_dict())
        norms = [block.norm_1, *([block.norm_cross] if len(pairs) > 1 else []), block.norm_2]
        others = [layer.norm1, layer.norm2, *([layer.norm3] if len(pairs) > 1 else [])]
        for own, other in [*zip(norms, others, strict=True), (block.up, layer.linear1), (block.down, layer.linear2)]:
            other.load_state_dict(own.state_dict())
    hidden = ~(torch.arange(T).expand(B, T) < LENGTHS)
    written = ids(1, length=14)
    expected = theirs(
        ours.embed(ids(), 0),
        ours.embed(written, 0),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(14, dtype=torch.float64),
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    agree(ours.decode(written, ours.encode(ids(), attention_mask=~hidden), ~hidden), expected)
