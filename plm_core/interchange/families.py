"""The models that transformers has too: one table of sizes and one of weights each, read in both directions.

Shapes: D width, H heads.
"""

from collections.abc import Mapping
from typing import Any

import torch

from plm_core.interchange.family import SAME, TRANSPOSED, Family, Layout, Size, Weight, both
from plm_core.text.special import BOS, CLS, EOS, PAD, SEP

RANGE = Size("initializer_range", ("initializer_range",), default=0.02)


def required(**theirs: str) -> tuple[Size, ...]:
    """The lines of sizes that a configuration must hold: our name, and theirs."""
    return tuple(Size(ours, (name,)) for ours, name in theirs.items())


def _matrix(ours: str, theirs: str, first: int = 0) -> Weight:
    return Weight(f"blocks.{{}}.{ours}.weight", (f"model.layers.{{}}.{theirs}.weight",), first=first)


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
        *required(vocab_size="vocab_size", context="n_positions", layers="n_layer", heads="n_head", width="n_embd"),
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
        *both("blocks.{}.norm_1", "transformer.h.{}.ln_1"),
        *both("blocks.{}.attention.qkv", "transformer.h.{}.attn.c_attn", TRANSPOSED),
        *both("blocks.{}.attention.out", "transformer.h.{}.attn.c_proj", TRANSPOSED),
        *both("blocks.{}.norm_2", "transformer.h.{}.ln_2"),
        *both("blocks.{}.up", "transformer.h.{}.mlp.c_fc", TRANSPOSED),
        *both("blocks.{}.down", "transformer.h.{}.mlp.c_proj", TRANSPOSED),
        *both("norm", "transformer.ln_f"),
    ),
    base="transformer.",
    tied={"lm_head.weight": "transformer.wte.weight"},
    # The causal masks that older folders hold.
    ignored=(".attn.bias", ".attn.masked_bias"),
)
"""GPT-2 and GPT-3."""

# The RoPE base is written twice: under the key of transformers from version 5 on, and under the older one, which other
# programs read.
LLAMA = Family(
    architecture="llama",
    model_type="llama",
    model_class="LlamaForCausalLM",
    **CAUSAL,
    sizes=(
        *required(
            vocab_size="vocab_size",
            context="max_position_embeddings",
            layers="num_hidden_layers",
            heads="num_attention_heads",
            kv_heads="num_key_value_heads",
            width="hidden_size",
            inner="intermediate_size",
        ),
        Size("rope_base", ("rope_parameters.rope_theta", "rope_theta"), default=10_000.0),
        Size("dropout", ("attention_dropout",), default=0.0),
        RANGE,
    ),
    fixed={
        "hidden_act": ("silu",),
        "rms_norm_eps": (1e-6,),
        "rope_parameters.rope_type": ("default",),
        "rope_scaling": (None,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "tie_word_embeddings": (True,),
    },
    follows=lambda model: {"head_dim": model["width"] // max(1, model["heads"])},
    weights=(
        Weight("tokens.weight", ("model.embed_tokens.weight",)),
        _matrix("norm_1", "input_layernorm"),
        _matrix("attention.q", "self_attn.q_proj"),
        _matrix("attention.k", "self_attn.k_proj"),
        _matrix("attention.v", "self_attn.v_proj"),
        _matrix("attention.out", "self_attn.o_proj"),
        _matrix("norm_2", "post_attention_layernorm"),
        _matrix("gate", "mlp.gate_proj"),
        _matrix("up", "mlp.up_proj"),
        _matrix("down", "mlp.down_proj"),
        Weight("norm.weight", ("model.norm.weight",)),
    ),
    base="model.",
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    # The RoPE frequencies that older folders hold.
    ignored=(".rotary_emb.inv_freq",),
)
"""LLaMA with a tied output layer, as in Llama 3.2's small models."""

# The encoders. BERT's queries, keys and values have separate projections there; ours are one, [3 D, D].

SIZES_OF_ENCODERS = required(
    vocab_size="vocab_size",
    context="max_position_embeddings",
    layers="num_hidden_layers",
    heads="num_attention_heads",
    width="hidden_size",
)
STACKED = Layout(torch.cat, lambda ours, heads: ours.chunk(3))


def _qkv(kind: str) -> Weight:
    names = (f"bert.encoder.layer.{{}}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
    return Weight(f"blocks.{{}}.attention.qkv.{kind}", tuple(names), STACKED)


BERT = Family(
    architecture="bert",
    model_type="bert",
    model_class="BertForPreTraining",
    auto_class="AutoModelForPreTraining",
    objective="masked",
    sizes=(
        *SIZES_OF_ENCODERS,
        Size("segments", ("type_vocab_size",), default=2),
        Size("dropout", ("hidden_dropout_prob", "attention_probs_dropout_prob"), default=0.1),
        RANGE,
    ),
    fixed={
        "hidden_act": ("gelu",),
        "layer_norm_eps": (1e-12,),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    marks={"pad_token_id": PAD},
    follows=lambda model: {"intermediate_size": 4 * model["width"]},
    weights=(
        Weight("tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
        Weight("positions.weight", ("bert.embeddings.position_embeddings.weight",)),
        Weight("segments.weight", ("bert.embeddings.token_type_embeddings.weight",)),
        *both("norm", "bert.embeddings.LayerNorm"),
        _qkv("weight"),
        _qkv("bias"),
        *both("blocks.{}.attention.out", "bert.encoder.layer.{}.attention.output.dense"),
        *both("blocks.{}.norm_1", "bert.encoder.layer.{}.attention.output.LayerNorm"),
        *both("blocks.{}.up", "bert.encoder.layer.{}.intermediate.dense"),
        *both("blocks.{}.down", "bert.encoder.layer.{}.output.dense"),
        *both("blocks.{}.norm_2", "bert.encoder.layer.{}.output.LayerNorm"),
        *both("pooler", "bert.pooler.dense"),
        *both("transform", "cls.predictions.transform.dense"),
        *both("transform_norm", "cls.predictions.transform.LayerNorm"),
        Weight("bias", ("cls.predictions.bias",)),
        *both("follows", "cls.seq_relationship"),
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
    ignored=("embeddings.position_ids",),
)
"""BERT, also with RoBERTa's training."""


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
        *required(inner="intermediate_size"),
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
        "classifier_pooling": ("cls",),
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

INTO_HEADS = Layout(
    lambda theirs: theirs[0].flatten(1).T, lambda ours, heads: [ours.T.unflatten(1, (heads, len(ours) // heads))]
)
OUT_OF_HEADS = Layout(
    lambda theirs: theirs[0].flatten(1), lambda ours, heads: [ours.unflatten(1, (heads, len(ours) // heads))]
)
BIAS = Layout(lambda theirs: theirs[0][:, None], lambda ours, heads: [ours[:, 0]])
ALONE = Layout(lambda theirs: theirs[0][0, 0], lambda ours, heads: [ours[None, None]])


def _attention(ours: str, theirs: str, layout: Layout = SAME) -> Weight:
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
        *both("blocks.{}.norm_1", "transformer.layer.{}.rel_attn.layer_norm"),
        *both("blocks.{}.up", "transformer.layer.{}.ff.layer_1"),
        *both("blocks.{}.down", "transformer.layer.{}.ff.layer_2"),
        *both("blocks.{}.norm_2", "transformer.layer.{}.ff.layer_norm"),
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

FAMILIES = {family.architecture: family for family in (GPT, LLAMA, BERT, MODERNBERT, XLNET)}
"""By our architecture."""
