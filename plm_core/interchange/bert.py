"""BERT as ``BertForPreTraining``. Their queries, keys and values have separate projections; ours are one, [3 D, D]."""

import torch

from plm_core.interchange.family import Family, Layout, Size, Weight, both
from plm_core.text.special import PAD

STACKED = Layout(torch.cat, lambda ours, heads: ours.chunk(3))


def _qkv(kind: str) -> Weight:
    names = (f"bert.encoder.layer.{{}}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
    return Weight(f"blocks.{{}}.attention.qkv.{kind}", tuple(names), STACKED)


FAMILY = Family(
    architecture="bert",
    model_type="bert",
    model_class="BertForPreTraining",
    auto_class="AutoModelForPreTraining",
    objective="masked",
    sizes=(
        Size("vocab_size", ("vocab_size",)),
        Size("context", ("max_position_embeddings",)),
        Size("layers", ("num_hidden_layers",)),
        Size("heads", ("num_attention_heads",)),
        Size("width", ("hidden_size",)),
        Size("segments", ("type_vocab_size",), default=2),
        Size("dropout", ("hidden_dropout_prob", "attention_probs_dropout_prob"), default=0.1),
        Size("initializer_range", ("initializer_range",), default=0.02),
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
