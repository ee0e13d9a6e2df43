"""ModernBERT as ``ModernBertForMaskedLM``: each of our matrices is one of theirs.

The RoPE bases, and which layers attend to the whole row, are written twice: in the form of transformers from version 5
on, and in the older one.
"""

from collections.abc import Mapping
from typing import Any

from plm_core.interchange.family import Family, Size, Weight
from plm_core.text.special import BOS, CLS, EOS, PAD, SEP


def _matrix(ours: str, theirs: str, first: int = 0) -> Weight:
    return Weight(f"blocks.{{}}.{ours}.weight", (f"model.layers.{{}}.{theirs}.weight",), first=first)


def _layer_types(model: Mapping[str, Any]) -> dict[str, list[str]]:
    every = max(1, model["global_every"])
    return {
        "layer_types": ["sliding_attention" if i % every else "full_attention" for i in range(int(model["layers"]))]
    }


FAMILY = Family(
    architecture="modernbert",
    model_type="modernbert",
    model_class="ModernBertForMaskedLM",
    auto_class="AutoModelForMaskedLM",
    objective="masked",
    sizes=(
        Size("vocab_size", ("vocab_size",)),
        Size("context", ("max_position_embeddings",)),
        Size("layers", ("num_hidden_layers",)),
        Size("heads", ("num_attention_heads",)),
        Size("width", ("hidden_size",)),
        Size("inner", ("intermediate_size",)),
        Size("global_every", ("global_attn_every_n_layers",), default=3),
        Size("window", ("local_attention",), default=128),
        Size("rope_base", ("rope_parameters.full_attention.rope_theta", "global_rope_theta"), default=160_000.0),
        Size("local_rope_base", ("rope_parameters.sliding_attention.rope_theta", "local_rope_theta"), default=10_000.0),
        Size("dropout", ("embedding_dropout", "attention_dropout", "mlp_dropout"), default=0.0),
        Size("initializer_range", ("initializer_range",), default=0.02),
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
