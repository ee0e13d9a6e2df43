"""GPT as ``GPT2LMHeadModel``. Their projections are stored the other way round (``Conv1D``: [in, out])."""

from plm_core.interchange.family import TRANSPOSED, Family, Size, Weight
from plm_core.text.special import EOS, PAD


def _linear(ours: str, theirs: str) -> tuple[Weight, Weight]:
    return (
        Weight(f"blocks.{{}}.{ours}.weight", (f"transformer.h.{{}}.{theirs}.weight",), TRANSPOSED),
        Weight(f"blocks.{{}}.{ours}.bias", (f"transformer.h.{{}}.{theirs}.bias",)),
    )


def _norm(ours: str, theirs: str) -> tuple[Weight, Weight]:
    return (
        Weight(f"{ours}.weight", (f"transformer.{theirs}.weight",)),
        Weight(f"{ours}.bias", (f"transformer.{theirs}.bias",)),
    )


FAMILY = Family(
    architecture="gpt",
    model_type="gpt2",
    model_class="GPT2LMHeadModel",
    auto_class="AutoModelForCausalLM",
    objective="causal",
    sizes=(
        Size("vocab_size", ("vocab_size",)),
        Size("context", ("n_positions",)),
        Size("layers", ("n_layer",)),
        Size("heads", ("n_head",)),
        Size("width", ("n_embd",)),
        Size("dropout", ("resid_pdrop", "embd_pdrop", "attn_pdrop"), default=0.1),
        Size("initializer_range", ("initializer_range",), default=0.02),
    ),
    fixed={
        # The released name and its spelling by PyTorch's function: both are the tanh form of GELU.
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    # A document starts after the end of another, here as in GPT-2.
    marks={"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD},
    inner="n_inner",
    weights=(
        Weight("tokens.weight", ("transformer.wte.weight",)),
        Weight("positions.weight", ("transformer.wpe.weight",)),
        *_norm("blocks.{}.norm_1", "h.{}.ln_1"),
        *_linear("attention.qkv", "attn.c_attn"),
        *_linear("attention.out", "attn.c_proj"),
        *_norm("blocks.{}.norm_2", "h.{}.ln_2"),
        *_linear("up", "mlp.c_fc"),
        *_linear("down", "mlp.c_proj"),
        *_norm("norm", "ln_f"),
    ),
    base="transformer.",
    tied={"lm_head.weight": "transformer.wte.weight"},
    # A text is continued from the end of the one before it.
    frame=(("</s>", 0), ("A", 0)),
    frame_of_two=(("</s>", 0), ("A", 0), ("</s>", 0), ("B", 0)),
    padding_side="left",
    # The causal masks that older folders hold.
    ignored=(".attn.bias", ".attn.masked_bias"),
)
"""GPT-2 and GPT-3."""
