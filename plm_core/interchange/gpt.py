"""GPT as ``GPT2LMHeadModel``. Their projections are stored transposed (``Conv1D``: [in, out])."""

from plm_core.interchange.family import TRANSPOSED, Family, Size, Weight, both
from plm_core.text.special import EOS, PAD

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
        # The released name and the name of PyTorch's function: both are the tanh form of GELU.
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    # A document starts after the end of another, as in GPT-2.
    marks={"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD},
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
    # A text continues from the end of the one before it.
    frame=(("</s>", 0), ("A", 0)),
    frame_of_two=(("</s>", 0), ("A", 0), ("</s>", 0), ("B", 0)),
    padding_side="left",
    use="A document starts with `</s>`, and so does a prompt: `tokenizer(text)` puts it there.",
    # The causal masks that older folders hold.
    ignored=(".attn.bias", ".attn.masked_bias"),
)
"""GPT-2 and GPT-3."""
