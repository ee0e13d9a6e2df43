"""The architectures that transformers also has: a table of sizes and one of weights each, used in both directions.

Shapes: D width, H heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from plm_core.interchange.weight_mapping import SAME, TRANSPOSED, Family, Size, Weight, WeightLayout, weight_and_bias
from plm_core.models.rotary import HIGH, LOW
from plm_core.text.tokenizers import BOS, CLS, EOS, PAD, SEP

RANGE = Size("initializer_range", ("initializer_range",), default=0.02)


def required_sizes(**theirs: str) -> tuple[Size, ...]:
    """The lines of sizes that a configuration must hold: our name, and theirs."""
    return tuple(Size(ours, (name,)) for ours, name in theirs.items())


def _matrix(ours: str, theirs: str, first: int = 0) -> Weight:
    return Weight(f"blocks.{{}}.{ours}.weight", (f"model.layers.{{}}.{theirs}.weight",), first=first)


def _of_llama(ours: str, theirs: str) -> tuple[Weight, Weight]:
    bias = Weight(f"blocks.{{}}.{ours}.bias", (f"model.layers.{{}}.{theirs}.bias",), when=lambda m: m["qkv_bias"])
    return _matrix(ours, theirs), bias


def _scaled(model: Mapping[str, Any]) -> dict[str, Any]:
    """The RoPE scaling of Llama 3.1, in the form of transformers from version 5 on and in the older one."""
    if model["rope_factor"] == 1:
        return {"rope_parameters.rope_type": "default", "rope_scaling": None}
    scaling = {"rope_type": "llama3", "low_freq_factor": float(LOW), "high_freq_factor": float(HIGH)}
    return {f"{place}.{key}": value for place in ("rope_parameters", "rope_scaling") for key, value in scaling.items()}


def _renamed(weights: Sequence[Weight], *names: tuple[str, str]) -> tuple[Weight, ...]:
    """A table of weights with parts of their names replaced."""
    table = []
    for weight in weights:
        theirs = weight.theirs
        for old, new in names:
            theirs = tuple(name.replace(old, new) for name in theirs)
        table.append(replace(weight, theirs=theirs))
    return tuple(table)


def _without(weights: Sequence[Weight], *ours: str) -> tuple[Weight, ...]:
    return tuple(weight for weight in weights if not weight.ours.startswith(ours))


# The causal models. A document starts after the end of another, as in GPT-2, and a text continues from there.

CAUSAL: dict[str, Any] = {
    "auto_class": "AutoModelForCausalLM",
    "objective": "causal",
    "marks": {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD},
    "frame": (("</s>", 0), ("A", 0)),
    "frame_of_two": (("</s>", 0), ("A", 0), ("</s>", 0), ("B", 0)),
    "padding_side": "left",
    "use": "A document starts with `</s>`, and so does a prompt: `tokenizer(text)` puts it there.",
}

# Their projections are stored transposed (`Conv1D`: [in, out]).
GPT = Family(
    architecture="gpt",
    model_type="gpt2",
    model_class="GPT2LMHeadModel",
    **CAUSAL,
    sizes=(
        *required_sizes(
            vocab_size="vocab_size", context="n_positions", layers="n_layer", heads="n_head", width="n_embd"
        ),
        Size("dropout", ("resid_pdrop", "embd_pdrop", "attn_pdrop"), default=0.1),
        RANGE,
    ),
    fixed={
        # The released name and the name of PyTorch's function: both are the tanh form of GELU.
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    follows=lambda model: {"n_inner": 4 * model["width"]},
    weights=(
        Weight("tokens.weight", ("transformer.wte.weight",)),
        Weight("positions.weight", ("transformer.wpe.weight",)),
        *weight_and_bias("blocks.{}.norm_1", "transformer.h.{}.ln_1"),
        *weight_and_bias("blocks.{}.attention.qkv", "transformer.h.{}.attn.c_attn", TRANSPOSED),
        *weight_and_bias("blocks.{}.attention.out", "transformer.h.{}.attn.c_proj", TRANSPOSED),
        *weight_and_bias("blocks.{}.norm_2", "transformer.h.{}.ln_2"),
        *weight_and_bias("blocks.{}.up", "transformer.h.{}.mlp.c_fc", TRANSPOSED),
        *weight_and_bias("blocks.{}.down", "transformer.h.{}.mlp.c_proj", TRANSPOSED),
        *weight_and_bias("norm", "transformer.ln_f"),
    ),
    base="transformer.",
    tied={"lm_head.weight": "transformer.wte.weight"},
    # The causal masks that older folders hold.
    ignored=(".attn.bias", ".attn.masked_bias"),
)
"""GPT-2 and GPT-3."""

GPT1 = replace(
    GPT,
    model_type="openai-gpt",
    model_class="OpenAIGPTLMHeadModel",
    sizes=(*GPT.sizes, Size("norm", (), default="post")),
    # What they call "gelu" here is its tanh form.
    fixed={"afn": ("gelu",), "layer_norm_epsilon": (1e-5,), "tie_word_embeddings": (True,)},
    follows=lambda model: {},
    weights=_renamed(_without(GPT.weights, "norm."), (".wte.", ".tokens_embed."), (".wpe.", ".positions_embed.")),
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(*GPT.ignored, "position_ids"),
    unmarked=True,
)
"""The first GPT, with post-norm."""

# The RoPE base is written twice: under the key of transformers from version 5 on, and under the older one, which other
# programs read.
LLAMA = Family(
    architecture="llama",
    model_type="llama",
    model_class="LlamaForCausalLM",
    **CAUSAL,
    sizes=(
        *required_sizes(
            vocab_size="vocab_size",
            context="max_position_embeddings",
            layers="num_hidden_layers",
            heads="num_attention_heads",
            kv_heads="num_key_value_heads",
            width="hidden_size",
            inner="intermediate_size",
        ),
        Size("rope_base", ("rope_parameters.rope_theta", "rope_theta"), default=10_000.0),
        Size("rope_factor", ("rope_parameters.factor", "rope_scaling.factor"), default=1.0, always=False),
        Size(
            "rope_context",
            ("rope_parameters.original_max_position_embeddings", "rope_scaling.original_max_position_embeddings"),
            default=None,
            always=False,
        ),
        Size("norm_epsilon", ("rms_norm_eps",), default=1e-6),
        Size("tied", ("tie_word_embeddings",), default=False),
        Size("dropout", ("attention_dropout",), default=0.0),
        RANGE,
    ),
    fixed={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,), "sliding_window": (None,)},
    follows=lambda model: {"head_dim": model["width"] // max(1, model["heads"]), **_scaled(model)},
    weights=(
        Weight("tokens.weight", ("model.embed_tokens.weight",)),
        _matrix("norm_1", "input_layernorm"),
        *_of_llama("attention.q", "self_attn.q_proj"),
        *_of_llama("attention.k", "self_attn.k_proj"),
        *_of_llama("attention.v", "self_attn.v_proj"),
        _matrix("attention.out", "self_attn.o_proj"),
        _matrix("norm_2", "post_attention_layernorm"),
        _matrix("gate", "mlp.gate_proj"),
        _matrix("up", "mlp.up_proj"),
        _matrix("down", "mlp.down_proj"),
        Weight("unembed.weight", ("lm_head.weight",), when=lambda m: not m["tied"]),
        Weight("norm.weight", ("model.norm.weight",)),
    ),
    base="model.",
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    # The RoPE frequencies that older folders hold.
    ignored=(".rotary_emb.inv_freq",),
)
"""LLaMA 1 to 3, SmolLM and others that differ only in size."""

MISTRAL = replace(LLAMA, model_type="mistral", model_class="MistralForCausalLM")
"""Mistral without a sliding window, which its later versions do not have."""

QWEN = replace(
    LLAMA,
    model_type="qwen2",
    model_class="Qwen2ForCausalLM",
    sizes=(*LLAMA.sizes, Size("qkv_bias", (), default=True)),
    fixed={"hidden_act": ("silu",), "use_sliding_window": (False,)},
)
"""Qwen 2 and 2.5."""

# The encoders. BERT's queries, keys and values have separate projections there; ours are one, [3 D, D].

SIZES_OF_ENCODERS = required_sizes(
    vocab_size="vocab_size",
    context="max_position_embeddings",
    layers="num_hidden_layers",
    heads="num_attention_heads",
    width="hidden_size",
)
STACKED = WeightLayout(torch.cat, lambda ours, heads: ours.chunk(3))


def _qkv(kind: str, theirs: str = "bert.encoder.layer.{}.attention.self", names: str = "query key value") -> Weight:
    return Weight(f"blocks.{{}}.attention.qkv.{kind}", tuple(f"{theirs}.{n}.{kind}" for n in names.split()), STACKED)


# The parts that a folder lacks if it has no heads, or other ones.
PARTS = {
    "the pooler": ("pooler.",),
    "the head for masked tokens": ("transform.", "transform_norm.", "bias"),
    "the head for the next sentence": ("follows.",),
}

BERT = Family(
    architecture="bert",
    model_type="bert",
    model_class="BertForPreTraining",
    auto_class="AutoModelForPreTraining",
    objective="masked",
    sizes=(
        *SIZES_OF_ENCODERS,
        Size("segments", ("type_vocab_size",), default=2),
        Size("inner", ("intermediate_size",)),
        Size("norm_epsilon", ("layer_norm_eps",), default=1e-12),
        Size("dropout", ("hidden_dropout_prob", "attention_probs_dropout_prob"), default=0.1),
        RANGE,
    ),
    fixed={
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    marks={"pad_token_id": PAD},
    follows=lambda model: {},
    weights=(
        Weight("tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
        Weight("positions.weight", ("bert.embeddings.position_embeddings.weight",)),
        Weight("segments.weight", ("bert.embeddings.token_type_embeddings.weight",)),
        *weight_and_bias("norm", "bert.embeddings.LayerNorm"),
        _qkv("weight"),
        _qkv("bias"),
        *weight_and_bias("blocks.{}.attention.out", "bert.encoder.layer.{}.attention.output.dense"),
        *weight_and_bias("blocks.{}.norm_1", "bert.encoder.layer.{}.attention.output.LayerNorm"),
        *weight_and_bias("blocks.{}.up", "bert.encoder.layer.{}.intermediate.dense"),
        *weight_and_bias("blocks.{}.down", "bert.encoder.layer.{}.output.dense"),
        *weight_and_bias("blocks.{}.norm_2", "bert.encoder.layer.{}.output.LayerNorm"),
        *weight_and_bias("pooler", "bert.pooler.dense"),
        *weight_and_bias("transform", "cls.predictions.transform.dense"),
        *weight_and_bias("transform_norm", "cls.predictions.transform.LayerNorm"),
        Weight("bias", ("cls.predictions.bias",)),
        *weight_and_bias("follows", "cls.seq_relationship"),
    ),
    base="bert.",
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    frame=(("<cls>", 0), ("A", 0), ("<sep>", 0)),
    frame_of_two=(("<cls>", 0), ("A", 0), ("<sep>", 0), ("B", 1), ("<sep>", 1)),
    padding_side="right",
    use="`tokenizer(text)` frames a text as `<cls> text <sep>`, and two as `<cls> A <sep> B <sep>`. To mask a token, "
    "write `tokenizer.mask_token_id` into the ids. Whether the head for the next sentence was trained, the checkpoint "
    "does not say.",
    parts=PARTS,
    ignored=("embeddings.position_ids",),
)
"""BERT, also with RoBERTa's training."""

ROBERTA = replace(
    BERT,
    model_type="roberta",
    model_class="RobertaForMaskedLM",
    auto_class="AutoModelForMaskedLM",
    sizes=(
        *(size for size in BERT.sizes if size.ours != "context"),
        Size("context", ("max_position_embeddings",), less=2),
        Size("first_position", (), default=2),
        Size("separators", (), default=2),
    ),
    weights=_renamed(
        _without(BERT.weights, "pooler", "follows"),
        ("bert.", "roberta."),
        ("cls.predictions.transform.dense", "lm_head.dense"),
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    base="roberta.",
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    # A folder of the bare encoder may hold a pooler that nothing has trained.
    ignored=("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"),
)
"""RoBERTa, whose positions begin at 2, and whose pairs have two separators."""

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    model_class="DistilBertForMaskedLM",
    auto_class="AutoModelForMaskedLM",
    sizes=(
        *required_sizes(
            vocab_size="vocab_size",
            context="max_position_embeddings",
            layers="n_layers",
            heads="n_heads",
            width="dim",
            inner="hidden_dim",
        ),
        Size("segments", (), default=0),
        Size("dropout", ("dropout", "attention_dropout"), default=0.1),
        RANGE,
    ),
    fixed={"activation": ("gelu",), "tie_word_embeddings": (True,)},
    weights=(
        *_renamed(
            _without(BERT.weights, "segments", "pooler", "follows", "blocks.{}.attention.qkv"),
            ("bert.encoder.layer", "distilbert.transformer.layer"),
            ("bert.embeddings", "distilbert.embeddings"),
            ("attention.output.dense", "attention.out_lin"),
            ("attention.output.LayerNorm", "sa_layer_norm"),
            ("intermediate.dense", "ffn.lin1"),
            ("output.dense", "ffn.lin2"),
            ("output.LayerNorm", "output_layer_norm"),
            ("cls.predictions.transform.dense", "vocab_transform"),
            ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
            ("cls.predictions.bias", "vocab_projector.bias"),
        ),
        *(_qkv(kind, "distilbert.transformer.layer.{}.attention", "q_lin k_lin v_lin") for kind in ("weight", "bias")),
    ),
    base="distilbert.",
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler."""

ELECTRA = replace(
    BERT,
    architecture="electra",
    model_type="electra",
    model_class="ElectraForPreTraining",
    auto_class="AutoModelForPreTraining",
    objective="replaced",
    sizes=(
        *SIZES_OF_ENCODERS,
        Size("embedding", ("embedding_size",)),
        Size("segments", ("type_vocab_size",), default=2),
        Size("dropout", ("hidden_dropout_prob", "attention_probs_dropout_prob"), default=0.1),
        RANGE,
    ),
    fixed={**BERT.fixed, "layer_norm_eps": (1e-12,)},
    follows=lambda model: {"intermediate_size": 4 * model["width"]},
    weights=(
        *_renamed(_without(BERT.weights, "pooler", "follows", "transform", "bias"), ("bert.", "electra.")),
        *(
            replace(weight, when=lambda model: model["embedding"] != model["width"])
            for weight in weight_and_bias("project", "electra.embeddings_project")
        ),
        *weight_and_bias("transform", "discriminator_predictions.dense"),
        *weight_and_bias("replaced", "discriminator_predictions.dense_prediction"),
    ),
    base="electra.",
    tied={},
    parts={
        "the head for replaced tokens": ("transform.", "replaced."),
        "the generator": ("generator.",),
    },
)
"""ELECTRA's discriminator. Its generator is published as another folder, which is not read."""


def _layer_types(model: Mapping[str, Any]) -> dict[str, list[str]]:
    every = max(1, model["global_every"])
    return {
        "layer_types": ["sliding_attention" if i % every else "full_attention" for i in range(int(model["layers"]))]
    }


# The RoPE bases, and which layers attend to the whole row, are written twice: in the form of transformers from version
# 5 on, and in the older one.
MODERNBERT = Family(
    architecture="modernbert",
    model_type="modernbert",
    model_class="ModernBertForMaskedLM",
    auto_class="AutoModelForMaskedLM",
    objective="masked",
    sizes=(
        *SIZES_OF_ENCODERS,
        *required_sizes(inner="intermediate_size"),
        Size("global_every", ("global_attn_every_n_layers",), default=3),
        Size("window", ("local_attention",), default=128),
        Size("rope_base", ("rope_parameters.full_attention.rope_theta", "global_rope_theta"), default=160_000.0),
        Size("local_rope_base", ("rope_parameters.sliding_attention.rope_theta", "local_rope_theta"), default=10_000.0),
        Size("dropout", ("embedding_dropout", "attention_dropout", "mlp_dropout"), default=0.0),
        RANGE,
    ),
    fixed={
        "hidden_activation": ("gelu",),
        "classifier_activation": ("gelu",),
        "classifier_pooling": ("cls", "mean"),
        "norm_eps": (1e-5,),
        "norm_bias": (False,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "classifier_bias": (False,),
        "decoder_bias": (True,),
        "rope_parameters.full_attention.rope_type": ("default",),
        "rope_parameters.sliding_attention.rope_type": ("default",),
        "tie_word_embeddings": (True,),
    },
    marks={"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "cls_token_id": CLS, "sep_token_id": SEP},
    follows=_layer_types,
    weights=(
        Weight("tokens.weight", ("model.embeddings.tok_embeddings.weight",)),
        Weight("norm.weight", ("model.embeddings.norm.weight",)),
        _matrix("norm_1", "attn_norm", first=1),
        _matrix("attention.qkv", "attn.Wqkv"),
        _matrix("attention.out", "attn.Wo"),
        _matrix("norm_2", "mlp_norm"),
        _matrix("up", "mlp.Wi"),
        _matrix("down", "mlp.Wo"),
        Weight("last_norm.weight", ("model.final_norm.weight",)),
        Weight("transform.weight", ("head.dense.weight",)),
        Weight("transform_norm.weight", ("head.norm.weight",)),
        Weight("bias", ("decoder.bias",)),
    ),
    base="model.",
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    frame=(("<cls>", 0), ("A", 0), ("<sep>", 0)),
    # There are no segments.
    frame_of_two=(("<cls>", 0), ("A", 0), ("<sep>", 0), ("B", 0), ("<sep>", 0)),
    padding_side="right",
    use="`tokenizer(text)` frames a text as `<cls> text <sep>`, and two as `<cls> A <sep> B <sep>`. To mask a token, "
    "write `tokenizer.mask_token_id` into the ids.",
)
"""ModernBERT, whose classifiers read the first position."""

# XLNet. Their projections are [D, H, D/H], ours [D, D] like every linear layer's. Theirs has no maximum length:
# `context` is written under our own key, and read as 512 (as released) if it is absent.

INTO_HEADS = WeightLayout(
    lambda theirs: theirs[0].flatten(1).T, lambda ours, heads: [ours.T.unflatten(1, (heads, len(ours) // heads))]
)
OUT_OF_HEADS = WeightLayout(
    lambda theirs: theirs[0].flatten(1), lambda ours, heads: [ours.unflatten(1, (heads, len(ours) // heads))]
)
BIAS = WeightLayout(lambda theirs: theirs[0][:, None], lambda ours, heads: [ours[:, 0]])
ALONE = WeightLayout(lambda theirs: theirs[0][0, 0], lambda ours, heads: [ours[None, None]])


def _attention(ours: str, theirs: str, layout: WeightLayout = SAME) -> Weight:
    return Weight(f"blocks.{{}}.attention.{ours}", (f"transformer.layer.{{}}.rel_attn.{theirs}",), layout)


XLNET = Family(
    architecture="xlnet",
    model_type="xlnet",
    model_class="XLNetLMHeadModel",
    auto_class="AutoModelForPreTraining",
    objective="permutation",
    sizes=(
        Size("vocab_size", ("vocab_size",)),
        Size("context", ("plm_context",), default=512),
        Size("layers", ("n_layer",)),
        Size("heads", ("n_head",)),
        Size("width", ("d_model",)),
        Size("memory", ("mem_len",), default=0),
        Size("dropout", ("dropout",), default=0.1),
        RANGE,
    ),
    fixed={
        "ff_activation": ("gelu",),
        "layer_norm_eps": (1e-12,),
        "untie_r": (True,),
        "attn_type": ("bi",),
        "bi_data": (False,),
        "clamp_len": (-1,),
        "same_length": (False,),
        "tie_word_embeddings": (True,),
    },
    marks={"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD},
    follows=lambda model: {"d_inner": 4 * model["width"]},
    weights=(
        Weight("tokens.weight", ("transformer.word_embedding.weight",)),
        Weight("unknown", ("transformer.mask_emb",), ALONE),
        *(_attention(f"{name}.weight", name, INTO_HEADS) for name in "qkvr"),
        _attention("out.weight", "o", OUT_OF_HEADS),
        _attention("content_bias", "r_w_bias", BIAS),
        _attention("distance_bias", "r_r_bias", BIAS),
        _attention("segment_bias", "r_s_bias", BIAS),
        _attention("segments", "seg_embed"),
        *weight_and_bias("blocks.{}.norm_1", "transformer.layer.{}.rel_attn.layer_norm"),
        *weight_and_bias("blocks.{}.up", "transformer.layer.{}.ff.layer_1"),
        *weight_and_bias("blocks.{}.down", "transformer.layer.{}.ff.layer_2"),
        *weight_and_bias("blocks.{}.norm_2", "transformer.layer.{}.ff.layer_norm"),
        Weight("bias", ("lm_loss.bias",)),
    ),
    base="transformer.",
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    frame=(("A", 0), ("<sep>", 0), ("<cls>", 2)),
    frame_of_two=(("A", 0), ("<sep>", 0), ("B", 1), ("<sep>", 1), ("<cls>", 2)),
    padding_side="left",
    use="`tokenizer(text)` frames a text as `text <sep> <cls>`, and two as `A <sep> B <sep> <cls>`. Give `perm_mask` "
    "and `target_mapping` to predict tokens; without them the model reads in both directions.",
)
"""XLNet as trained with its permutation objective."""

# T5, whose ids include the sentinels: `vocab_size` counts them there, and here only if a published tokenizer has them.


def _of_side(side: str, layer: int, ours: str, theirs: str, **when: Any) -> Weight:
    name = f"{side}.block.{{}}.layer.{layer}.{theirs}.weight"
    return Weight(f"blocks.{{}}.{ours}.weight", (name,), decoder=side == "decoder", **when)


def _attention_of_side(side: str, layer: int, ours: str, theirs: str) -> tuple[Weight, ...]:
    return tuple(_of_side(side, layer, f"{ours}.{own}", f"{theirs}.{own[0]}") for own in ("q", "k", "v", "out"))


def _side(side: str) -> Iterator[Weight]:
    last = 2 if side == "decoder" else 1
    yield from _attention_of_side(side, 0, "attention", "SelfAttention")
    yield _of_side(side, 0, "norm_1", "layer_norm")
    if side == "decoder":
        yield from _attention_of_side(side, 1, "cross", "EncDecAttention")
        yield _of_side(side, 1, "norm_cross", "layer_norm")
    yield _of_side(side, last, "norm_2", "layer_norm")
    yield _of_side(side, last, "up", "DenseReluDense.wi", when=lambda m: not m["gated"])
    yield _of_side(side, last, "gate", "DenseReluDense.wi_0", when=lambda m: m["gated"])
    yield _of_side(side, last, "up", "DenseReluDense.wi_1", when=lambda m: m["gated"])
    yield _of_side(side, last, "down", "DenseReluDense.wo")
    distances = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    yield Weight(f"{side}_distances.weight", (distances,))
    yield Weight("norm.weight" if side == "decoder" else "encoder_norm.weight", (f"{side}.final_layer_norm.weight",))


T5 = Family(
    architecture="t5",
    model_type="t5",
    model_class="T5ForConditionalGeneration",
    auto_class="AutoModelForSeq2SeqLM",
    objective="span_corruption",
    sizes=(
        *required_sizes(
            vocab_size="vocab_size",
            layers="num_layers",
            heads="num_heads",
            width="d_model",
            head_width="d_kv",
            inner="d_ff",
        ),
        Size("context", ("n_positions",), default=512),
        Size("buckets", ("relative_attention_num_buckets",), default=32),
        Size("max_distance", ("relative_attention_max_distance",), default=128),
        Size("gated", ("feed_forward_proj",), default=False, words=("relu", "gated-gelu")),
        Size("tied", ("tie_word_embeddings",), default=True),
        Size("dropout", ("dropout_rate",), default=0.1),
    ),
    fixed={"layer_norm_epsilon": (1e-6,), "is_encoder_decoder": (True,)},
    marks={"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD},
    follows=lambda model: {"num_decoder_layers": model["layers"]},
    weights=(
        Weight("tokens.weight", ("shared.weight",)),
        Weight("unembed.weight", ("lm_head.weight",), when=lambda m: not m["tied"]),
        *_side("encoder"),
        *_side("decoder"),
    ),
    base="",
    tied={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    frame=(("A", 0), ("</s>", 0)),
    frame_of_two=(("A", 0), ("</s>", 0), ("B", 0), ("</s>", 0)),
    padding_side="right",
    use="`tokenizer(text)` ends a text with `</s>`. The decoder begins with `<pad>`; `<extra_id_0>` in a text stands "
    "for a span that the model writes.",
    sentinel="<extra_id_0>",
    # Older folders hold a bias that nothing reads.
    ignored=("EncDecAttention.relative_attention_bias.weight",),
)
"""T5 and T5 1.1."""

FAMILIES = {family.architecture: family for family in (GPT, LLAMA, BERT, MODERNBERT, XLNET, T5)}
"""The families of checkpoints that began with random weights, by our architecture."""
OTHERS = (GPT1, MISTRAL, QWEN, ROBERTA, DISTILBERT, ELECTRA)
PUBLISHED = {family.model_type: family for family in (*FAMILIES.values(), *OTHERS)}
"""The families of published models, by their name."""


def family_of(architecture: str, model: Mapping[str, Any]) -> Family | None:
    """The family of a checkpoint that began with random weights; ``model`` is its configuration."""
    return GPT1 if model.get("norm") == "post" else FAMILIES.get(architecture)
