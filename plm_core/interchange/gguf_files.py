"""Llama-like models as GGUF files, for llama.cpp and Ollama: converted to a folder of transformers, and written.

The file holds everything: sizes, a vocabulary with its merges or scores, and weights that may be quantised, which the
package ``gguf`` turns into float32. What quantisation has lost stays lost. Source: llama.cpp's convert_hf_to_gguf.py.

Shapes: H heads, S the size of a head, D width.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.interchange import tokenizer_files
from plm_core.interchange.architecture_tables import LLAMA, PUBLISHED
from plm_core.interchange.tokenizer_files import to_their_rows
from plm_core.interchange.transformers_folder import their_class_fits
from plm_core.shared.files import atomic_file
from plm_core.text.hf_tokenizers import EMPTY, bpe, to_bytes
from plm_core.text.published_tokenizer import Published, open_library_tokenizer
from plm_core.text.sentencepiece_tokenizers import BYTES
from plm_core.text.tokenizers import EOS, JSON_FILE, PAD, UNK

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
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The types of tokens. No text spells an unknown or control token; user-defined ones are found before any merge."""
ROLES = {"bos": EOS, "eos": EOS, "unk": UNK, "pad": PAD}
"""The special tokens that a decoder of this project reads, by their names in transformers."""
THEIR_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
PRECISIONS = {"gguf": "F16", "gguf-f32": "F32", "gguf-q8_0": "Q8_0"}
"""The precision of matrices by the name of a format; vectors are in float32."""


def _cutting(words: str) -> list[dict[str, Any]]:
    """The library's steps that cut texts as ``WORDS`` says for this name, and spell bytes."""
    by_regex = words in ("gpt-2", "smollm")
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": by_regex}
    return [*WORDS[words], last]


def _names(layers: int) -> dict[str, str]:
    """Their names for weights, and those of transformers."""
    return OTHERS | {
        f"blk.{i}.{theirs}.{kind}": f"model.layers.{i}.{name}.{kind}"
        for i in range(layers)
        for theirs, name in BLOCK.items()
        for kind in ("weight", "bias")
    }


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
    config: dict[str, Any] = {
        "model_type": ARCHITECTURES[architecture],
        "architectures": [f"{architecture.title()}ForCausalLM"],
    }
    for theirs, name in SIZES.items():
        if (value := facts.get(f"{architecture}.{theirs}")) is not None:
            # The shortest decimal that gives this 32-bit number: what the original configuration said.
            config[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    tokens = facts.get("tokenizer.ggml.tokens", [])
    config["vocab_size"] = len(tokens)

    # The weights. RoPE rotates pairs of neighbours there; in transformers, the two halves of a head.
    tensors: dict[str, torch.Tensor] = {}
    names = _names(config.get("num_hidden_layers", 0))
    heads = {"attn_q": config.get("num_attention_heads"), "attn_k": config.get("num_key_value_heads")}
    for tensor in reader.tensors:
        name = tensor.name
        if name not in names:
            raise UserError(f"{file}: holds {name}, which a {architecture} without RoPE scaling does not have")
        try:
            weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        except NotImplementedError as error:
            raise UserError(f"{file}: {name}: quantisation {tensor.tensor_type.name} is not known") from error
        if architecture == "llama" and (count := heads.get(name.split(".")[-2])):
            weight = weight.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
        tensors[names[name]] = weight.contiguous()
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors

    # The tokenizer.
    kind = facts.get("tokenizer.ggml.model")
    types = facts.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    words = facts.get("tokenizer.ggml.pre", "gpt-2")
    roles = {role: facts.get(f"tokenizer.ggml.{name}_token_id") for role, name in THEIR_ROLES.items()}
    named: dict[str, Any] = {f"{role}_token": tokens[i] for role, i in roles.items() if isinstance(i, int)}
    if kind == "llama":
        order = np.argsort(-np.array(facts["tokenizer.ggml.scores"]), kind="stable")
        merges = tokenizer_files.divisions([tokens[i] for i in order if types[i] == NORMAL])
        model = bpe(tokens, merges, named.get("unk_token", tokens[0]))
        content = tokenizer_files.pieces_json(model, prefix=facts.get("tokenizer.ggml.add_space_prefix", True))
    elif kind == "gpt2" and words in WORDS:
        model = bpe(tokens, (merge.split(" ") for merge in facts["tokenizer.ggml.merges"]))
        model["ignore_merges"] = words == "llama-bpe"
        cut = _cutting(words)
        content = EMPTY | {
            "model": model,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cut},
            "decoder": cut[-1],
        }
    else:
        expected = f"'gpt2' with {', '.join(WORDS)}, or 'llama'"
        raise UserError(f"{file}: tokenizer: found {kind!r} with {words!r}; expected {expected}")
    model["vocab"] = {piece: i for piece, i in model["vocab"].items() if types[i] != UNUSED}
    content["added_tokens"] = [
        {"id": i, "content": tokens[i], "special": kind != USER_DEFINED, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    named["add_bos_token"] = bool(facts.get("tokenizer.ggml.add_bos_token"))
    if template := facts.get("tokenizer.chat_template"):
        named["chat_template"] = template

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for name, content_of in (("config.json", config), ("tokenizer.json", content), ("tokenizer_config.json", named)):
        (folder / name).write_text(json.dumps(content_of, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export_gguf(checkpoint_folder: Path, target: Path, precision: str) -> None:
    """Write a checkpoint as a GGUF file; for ``precision`` see ``PRECISIONS``.

    Raises:
        UserError: the checkpoint is damaged, it or its tokenizer has no counterpart there, or ``target`` exists or
            does not end in ``.gguf``.
    """
    import gguf

    if target.suffix != ".gguf" or target.exists():
        raise UserError(f"{target}: expected a new file, with a name that ends in .gguf")
    loaded = checkpoint.load(checkpoint_folder)
    config, text = loaded.config, loaded.tokenizer
    if config.architecture != LLAMA.architecture or config.head or not their_class_fits(config.objective, LLAMA):
        is_a = f"{config.architecture} {'with a head' if config.head else f'({config.objective})'}"
        raise UserError(f"{checkpoint_folder}: is a {is_a}; expected a pretrained llama: llama.cpp continues texts")
    model = asdict(loaded.model.config)
    if model["rope_factor"] != 1:
        raise UserError(f"{checkpoint_folder}: has RoPE scaling, which is exported to transformers only: --to hf")

    # The tokenizer, with its own ids. A document begins with EOS, unless its publisher says otherwise.
    weights = loaded.model.state_dict()
    family = LLAMA
    ids: dict[str, Any] = dict(ROLES)
    named: dict[str, Any] = {"add_bos_token": True}
    name = JSON_FILE
    if isinstance(text, Published):
        name = text.name
        data = text.content
        weights = to_their_rows(weights, text)
        model["vocab_size"] = len(text.ours)
        ids = {role: int(text.theirs[token]) for role, token in ROLES.items()}
        if config.published:
            theirs, files = config.published.config, config.published.files
            family = PUBLISHED[theirs["model_type"]]
            ids = {role: theirs.get(f"{role}_token_id") for role in ROLES}
            named = json.loads(files.get("tokenizer_config.json", "{}"))
            if template := files.get("chat_template.jinja"):
                named["chat_template"] = template
    else:
        data = to_bytes(tokenizer_files.tokenizer_json(text, family))
    library: Any = open_library_tokenizer(name, data).model
    sort = _sort(json.loads(library.to_str())) if name == JSON_FILE else None
    if sort is None:
        raise UserError(
            f"{text.path}: llama.cpp has no tokenizer that does the same as this one ({text.kind}); expected bpe, "
            f"bytelevel or a published BPE that cuts words as {', '.join(WORDS)}; --to hf takes every one"
        )
    kind, words, merges = sort
    tokens = [f"[PAD{i}]" for i in range(model["vocab_size"])]
    types = [UNUSED] * len(tokens)
    for piece, i in library.get_vocab().items():
        tokens[i] = piece
        types[i] = BYTE if kind == "llama" and piece in BYTES else NORMAL
    for i, added in library.get_added_tokens_decoder().items():
        types[i] = CONTROL if added.special else USER_DEFINED
    for role in ROLES:
        piece = named.get(f"{role}_token")
        if (piece := piece["content"] if isinstance(piece, dict) else piece) in tokens:
            ids[role] = tokens.index(piece)

    with atomic_file(target) as file:
        writer = gguf.GGUFWriter(file, architecture := "qwen2" if model["qkv_bias"] else "llama")
        sizes = family.their_config(model)
        for key, name in SIZES.items():
            write = writer.add_float32 if name in ("rope_theta", "rms_norm_eps") else writer.add_uint32
            write(f"{architecture}.{key}", sizes[name])
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre(words)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if kind == "llama":
            writer.add_token_scores([-float(i) if types[i] == NORMAL else 0.0 for i in range(len(tokens))])
            writer.add_add_space_prefix(library.normalizer.normalize_str("a") != "a")
        else:
            writer.add_token_merges([" ".join(merge) for merge in merges])
        for role, token in ids.items():
            if isinstance(token, int) and token >= 0:
                writer.add_uint32(f"tokenizer.ggml.{THEIR_ROLES[role]}_token_id", token)
        writer.add_add_bos_token(bool(named.get("add_bos_token")) or library.encode("").ids[:1] == [ids["bos"]])
        if template := named.get("chat_template"):
            writer.add_chat_template(template)

        # The weights.
        tensors = family.to_theirs(weights, model)
        names = {name: other for name, other in _names(model["layers"]).items() if other in tensors}
        heads = {"attn_q": model["heads"], "attn_k": model["kv_heads"]}
        for name, their_name in names.items():
            weight = tensors[their_name]
            if architecture == "llama" and (count := heads.get(name.split(".")[-2])):
                weight = weight.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
            stored = gguf.GGMLQuantizationType[PRECISIONS[precision] if weight.ndim > 1 else "F32"]
            if weight.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0]:
                stored = gguf.GGMLQuantizationType.F16
            writer.add_tensor(name, gguf.quantize(weight.contiguous().numpy(), stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _sort(content: Mapping[str, Any]) -> tuple[str, str, list[tuple[str, str]]] | None:
    """Their names for a tokenizer of the library and for how it cuts words, and its merges; None if llama.cpp has none
    that does the same with a text in normal form."""
    model = content["model"]
    if model["type"] != "BPE" or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return None
    normal, cut = (
        [] if step is None else step[parts] if step["type"] == "Sequence" else [step]
        for step, parts in ((content["normalizer"], "normalizers"), (content["pre_tokenizer"], "pretokenizers"))
    )
    normal = [step for step in normal if step not in tokenizer_files.NORMAL_FORM]
    cut = [step | {"trim_offsets": True} if step["type"] == "ByteLevel" else step for step in cut]
    merges = [(left, right) for left, right in model["merges"]]
    for words in WORDS:
        if (normal, cut, model["ignore_merges"]) == ([], _cutting(words), words == "llama-bpe"):
            return "gpt2", words, merges
    # sentencepiece merges whatever makes a piece, in the order of pieces.
    others = {*BYTES, *(added["content"] for added in content["added_tokens"])}
    ranks = [model["vocab"][left + right] for left, right in merges]
    every = tokenizer_files.divisions([piece for piece in model["vocab"] if piece not in others])
    whole = model["byte_fallback"] and not cut and ranks == sorted(ranks) and {*merges} == {*every}
    return (
        ("llama", "default", merges) if whole and normal in map(tokenizer_files.space_marking, (False, True)) else None
    )
