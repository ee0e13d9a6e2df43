"""XLNet as ``XLNetLMHeadModel``. Their projections are [D, H, D/H], ours [D, D] like every linear layer's.

Theirs has no maximum length: ``context`` is written under our own key, and read as 512 (as released) if it is absent.
"""

from plm_core.interchange.family import SAME, Family, Layout, Size, Weight, both
from plm_core.text.special import BOS, EOS, PAD

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


FAMILY = Family(
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
        Size("initializer_range", ("initializer_range",), default=0.02),
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
