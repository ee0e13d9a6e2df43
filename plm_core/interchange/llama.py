"""LLaMA as ``LlamaForCausalLM``: each of our matrices is one of theirs.

The RoPE base is written twice: under the key of transformers from version 5 on, and under the older one, which other
programs read.
"""

from plm_core.interchange.family import Family, Size, Weight
from plm_core.text.special import EOS, PAD


def _matrix(ours: str, theirs: str) -> Weight:
    return Weight(f"blocks.{{}}.{ours}.weight", (f"model.layers.{{}}.{theirs}.weight",))


FAMILY = Family(
    architecture="llama",
    model_type="llama",
    model_class="LlamaForCausalLM",
    auto_class="AutoModelForCausalLM",
    objective="causal",
    sizes=(
        Size("vocab_size", ("vocab_size",)),
        Size("context", ("max_position_embeddings",)),
        Size("layers", ("num_hidden_layers",)),
        Size("heads", ("num_attention_heads",)),
        Size("kv_heads", ("num_key_value_heads",)),
        Size("width", ("hidden_size",)),
        Size("inner", ("intermediate_size",)),
        Size("rope_base", ("rope_parameters.rope_theta", "rope_theta"), default=10_000.0),
        Size("dropout", ("attention_dropout",), default=0.0),
        Size("initializer_range", ("initializer_range",), default=0.02),
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
    # A document starts after the end of another, as in GPT-2.
    marks={"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD},
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
    # A text continues from the end of the one before it.
    frame=(("</s>", 0), ("A", 0)),
    frame_of_two=(("</s>", 0), ("A", 0), ("</s>", 0), ("B", 0)),
    padding_side="left",
    use="A document starts with `</s>`, and so does a prompt: `tokenizer(text)` puts it there.",
    # The RoPE frequencies that older folders hold.
    ignored=(".rotary_emb.inv_freq",),
)
"""LLaMA with a tied output layer, as in Llama 3.2's small models."""
