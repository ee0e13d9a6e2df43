"""A GGUF file of a Llama-like model, as llama.cpp and Ollama use them, as a folder of transformers.

The file holds everything: sizes, a byte-level vocabulary with its merges, and weights that may be quantised, which the
package ``gguf`` turns into float32. What quantisation has lost stays lost. Source: llama.cpp's convert_hf_to_gguf.py,
read backwards.

Shapes: H heads, S the size of a head, D width.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from plm_core.config import UserError
from plm_core.text.hf_tokenizers import EMPTY, bpe

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2"}
"""Their name for an architecture, and that of transformers."""
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"


def _cut_at(pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}]


WORDS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [],
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "llama-bpe": _cut_at(rf"{_SHORT}{_LETTERS}\p{{N}}{{1,3}}{_REST}"),
    "qwen2": _cut_at(rf"{_SHORT}{_LETTERS}\p{{N}}{_REST}"),
}
"""How texts are cut into words before bytes are merged, by their name for it."""
CONTROL = 3
"""The type of a token that no text spells."""


def as_folder(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a folder of transformers, in float32.

    Raises:
        UserError: it is not such a file, or its architecture, vocabulary or quantisation is not known.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        facts: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError, TypeError) as error:
        raise UserError(f"{file}: not a GGUF file ({error})") from error
    architecture = facts.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(f"{file}: general.architecture: found {architecture!r}; expected {' or '.join(ARCHITECTURES)}")
    config: dict[str, Any] = {"model_type": ARCHITECTURES[architecture], "architectures": ["LlamaForCausalLM"]}
    for theirs, name in SIZES.items():
        if (value := facts.get(f"{architecture}.{theirs}")) is not None:
            # A 32-bit number as its shortest decimal, as it was before.
            config[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    tokens = facts.get("tokenizer.ggml.tokens", [])
    config["vocab_size"] = len(tokens)

    # The weights. Neighbours form the pairs that RoPE rotates there, halves of a head in transformers.
    tensors: dict[str, torch.Tensor] = {}
    heads = {"attn_q": config.get("num_attention_heads"), "attn_k": config.get("num_key_value_heads")}
    for tensor in reader.tensors:
        name = tensor.name
        *_, number, layer, suffix = ("", "", *name.split("."))
        target = f"model.layers.{number}.{BLOCK[layer]}.{suffix}" if layer in BLOCK else OTHERS.get(name)
        if target is None:
            raise UserError(f"{file}: holds {name}, which a {architecture} without RoPE scaling does not have")
        try:
            weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        except NotImplementedError as error:
            raise UserError(f"{file}: {name}: quantisation {tensor.tensor_type.name} is not known") from error
        if architecture == "llama" and (count := heads.get(layer)):
            weight = weight.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
        tensors[target] = weight.contiguous()
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors

    # The tokenizer.
    kind = facts.get("tokenizer.ggml.model")
    words = facts.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or words not in WORDS:
        raise UserError(f"{file}: tokenizer: found {kind!r} with {words!r}; expected 'gpt2' with {', '.join(WORDS)}")
    last = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": words in ("gpt-2", "smollm"),
    }
    model = bpe(tokens, (merge.split(" ") for merge in facts["tokenizer.ggml.merges"]))
    special = [i for i, kind in enumerate(facts["tokenizer.ggml.token_type"]) if kind == CONTROL]
    content = EMPTY | {
        "model": model | {"ignore_merges": words == "llama-bpe"},
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i in special
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*WORDS[words], last]},
        "decoder": last,
    }
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    roles = {role: facts.get(f"tokenizer.ggml.{name}_token_id") for role, name in names.items()}
    named = {f"{role}_token": tokens[token] for role, token in roles.items() if isinstance(token, int)}
    named["add_bos_token"] = bool(facts.get("tokenizer.ggml.add_bos_token"))

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for name, content_of in (("config.json", config), ("tokenizer.json", content), ("tokenizer_config.json", named)):
        (folder / name).write_text(json.dumps(content_of, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
