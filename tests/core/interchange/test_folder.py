"""A checkpoint that transformers loads computes the same there, and comes back bit for bit."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved import save
from torch.nn import functional as F

from plm_core import checkpoint
from plm_core.config import UserError
from plm_core.configs.architectures import MODELS
from plm_core.interchange import FAMILIES, export_hf, import_hf
from plm_core.interchange.architecture_tables import GPT1
from plm_core.text.tokenizers import BYTES_AND_SPECIALS, PIECES

B, T = 5, 11
CLASSES = {
    "gpt": ["AutoModelForCausalLM", "AutoModelForPreTraining", "AutoModel"],
    "llama": ["AutoModelForCausalLM", "AutoModel"],
    "bert": ["AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModel"],
    "modernbert": ["AutoModelForMaskedLM", "AutoModel"],
    "xlnet": ["AutoModelForCausalLM", "AutoModelForPreTraining", "AutoModel"],
    "t5": ["AutoModelForSeq2SeqLM", "T5EncoderModel"],
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def ids(seed=0):
    return torch.randint(BYTES_AND_SPECIALS, 307, (B, T), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_exported_folder_matches_in_every_auto_class(exported):
    name, folder, hf = exported
    ours = checkpoint.load(folder).model
    order = torch.arange(T).expand(B, T)
    # XLNet as transformers takes it without masks: every position reads every other.
    hidden = ours.encode(ids())
    for kind in CLASSES[name]:
        theirs, info = getattr(transformers, kind).from_pretrained(hf, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["mismatched_keys"]
        special = {key: i for key, i in theirs.config.to_dict().items() if key.endswith("_token_id") and i is not None}
        assert special.items() >= FAMILIES[name].marks.items()
        assert all(0 <= i < len(PIECES) for i in special.values())
        if kind == "AutoModelForSeq2SeqLM":
            written = ids(1)[:, :7]
            output = theirs.eval()(ids(), decoder_input_ids=written)
            torch.testing.assert_close(output.logits, ours.logits(ours.decode(written, hidden)), **CLOSE)
            continue
        output = theirs.eval()(ids())
        if kind in ("AutoModel", "T5EncoderModel"):
            torch.testing.assert_close(output.last_hidden_state, hidden, **CLOSE)
            continue
        logits = output.prediction_logits if "prediction_logits" in output else output.logits
        torch.testing.assert_close(logits, ours.logits(hidden), **CLOSE)
        if "seq_relationship_logits" in output:
            torch.testing.assert_close(output.seq_relationship_logits, ours.next_sentence(ours.pool(hidden)), **CLOSE)
    if name == "xlnet":
        hides = (order[:, None, :] >= order[:, :, None]).float()
        theirs = transformers.AutoModelForPreTraining.from_pretrained(hf).eval()
        output = theirs(ids(), perm_mask=hides, target_mapping=F.one_hot(order, T).float()[:, 1:])
        query = ours(ids(), order, queries=order[:, 1:]).query
        torch.testing.assert_close(output.logits, ours.logits(query), **CLOSE)


def test_exported_folder_is_complete(exported):
    name, folder, hf = exported
    files = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    loaded = checkpoint.load(folder)
    assert {path.name for path in hf.iterdir()} == files | {loaded.tokenizer.file}
    with safe_open(hf / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
        assert not set(weights.keys()) & set(FAMILIES[name].tied)
    card = (hf / "README.md").read_text()
    assert ("lossy_pseudo_bits_per_byte" in card) == (loaded.tokenizer.kind == "wordpiece")
    for fact in (
        loaded.digest,
        loaded.tokenizer.sha256,
        FAMILIES[name].model_class,
        f"| layers | {loaded.model.config.layers} |",
        "bits_per_byte",
    ):
        assert fact in card
    assert ("single precision" in card) == (name == "xlnet")


def test_export_and_import_round_trip_bit_for_bit(exported, tmp_path):
    _, folder, hf = exported
    digest = import_hf(hf, tmp_path / "imported/again")
    assert digest == checkpoint.load(folder).digest  # weights, configuration, tokenizer: all bytes


@torch.no_grad()
def test_export_of_post_norm_is_the_first_gpt(tmp_path, tokenizer):
    digest = save(tmp_path / "ours", "gpt", tokenizer, norm="post")
    export_hf(tmp_path / "ours", tmp_path / "hf")
    assert import_hf(tmp_path / "hf", tmp_path / "again") == digest
    model = checkpoint.load(tmp_path / "ours").model
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "hf").eval()
    torch.testing.assert_close(model.logits(model(ids())), theirs(ids()).logits, rtol=1e-5, atol=1e-5)
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("The Union,\n 1790", add_special_tokens=False)
    assert encoded["input_ids"] == tokenizer.encode("The Union,\n 1790")


def test_export_round_trips_settings_without_a_key(tmp_path, tokenizer):
    changes = {"width": 24, "initial_embeddings": "neighbours", "initial_attention": "neighbours"}
    digest = save(tmp_path / "bert", "bert", tokenizer, **changes)
    export_hf(tmp_path / "bert", tmp_path / "hf")
    assert import_hf(tmp_path / "hf", tmp_path / "again") == digest
    others = edited(tmp_path / "hf", tmp_path / "others", lambda c: c["plm_checkpoint"]["model"].update(heads=2))
    assert import_hf(others, tmp_path / "theirs") == digest  # what has a key of theirs is read there


def edited(source, target, change=None, tensors=None):
    """A copy of an export with another configuration or other weights."""
    shutil.copytree(source, target)
    if change:
        config = json.loads((target / "config.json").read_text())
        change(config)
        (target / "config.json").write_text(json.dumps(config))
    if tensors:
        weights = load_file(target / "model.safetensors")
        tensors(weights)
        save_file(weights, target / "model.safetensors")
    return target


def test_import_reads_a_foreign_folder(exported, tmp_path):
    """As transformers itself saves it: in several files, half precision, without our keys; and without the prefix."""
    name, folder, hf = exported
    model = getattr(transformers, CLASSES[name][0]).from_pretrained(hf, dtype=torch.bfloat16)
    del model.config.plm_checkpoint
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 1
    ours = checkpoint.load(folder)
    shutil.copy(hf / ours.tokenizer.file, tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "imported")
    imported = checkpoint.load(tmp_path / "imported")
    assert imported.config.step == 0
    assert imported.config.objective == ours.config.objective
    sizes = vars(ours.model.config)
    expected = FAMILIES[name].to_ours({n: p.float() for n, p in model.named_parameters()}, sizes, "theirs")
    for key, weight in imported.model.state_dict().items():
        assert torch.equal(weight, expected[key]), key
        torch.testing.assert_close(weight, ours.model.state_dict()[key], rtol=0.01, atol=0.01)
    family = FAMILIES[name]
    bare = {key.removeprefix(family.base): weight for key, weight in load_file(hf / "model.safetensors").items()}
    assert family.to_ours(bare, sizes, "bare").keys() == ours.model.state_dict().keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(model_type="opt"),
            r"model_type: found 'opt'; expected one of gpt2, llama, bert, modernbert, xlnet, t5, openai-gpt",
        ),
        (lambda c: c.pop("model_type"), r"model_type: found None"),
        (lambda c: c.update(vocab_size=308), r"vocab_size: found 308; expected 3(07|12)"),
        (lambda c: c.update(vocab_size={}), r"vocab_size: found \{\}; expected a number"),
        (lambda c: c.update(plm_checkpoint=[7]), r"plm_checkpoint: found \[7\]; expected a section"),
        (lambda c: c.update(plm_checkpoint={"step": "x"}), r"plm_checkpoint\.step: found the text 'x'"),
        (lambda c: c.update(plm_checkpoint={"objective": "x"}), r"plm_checkpoint\.objective: found 'x'; expected"),
    ],
)
def test_import_refuses_unknown_configurations(exported, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        import_hf(edited(exported[2], tmp_path / "hf", change), tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_import_reads_released_configurations():
    """What transformers' own defaults are, which is what the released checkpoints say."""
    drawn = {"dropout": 0.1, "initializer_range": 0.02}
    for name, config in {"gpt": transformers.GPT2Config, "bert": transformers.BertConfig}.items():
        size = {"gpt": "small", "bert": "base"}[name]
        fields = FAMILIES[name].our_config(config().to_dict(), name)
        others = {"segments": 2, "inner": 3072, "norm_epsilon": 1e-12} if name == "bert" else {}
        assert fields == MODELS[name].presets[size] | drawn | others
    fields = GPT1.our_config(transformers.OpenAIGPTConfig().to_dict(), "gpt-1")
    assert fields == MODELS["gpt"].presets["gpt-1"] | drawn
    fields = FAMILIES["xlnet"].our_config(transformers.XLNetConfig(mem_len=None).to_dict(), "xlnet")
    assert fields == MODELS["xlnet"].presets["large"] | {"memory": 0} | drawn
    fields = FAMILIES["llama"].our_config(transformers.LlamaConfig().to_dict(), "llama")
    larger = {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16}
    windows = {"dropout": 0.0, "global_every": 3, "window": 128, "rope_base": 160_000.0, "local_rope_base": 10_000.0}
    for size, changes in {"base": {}, "large": larger}.items():
        config = transformers.ModernBertConfig(**changes).to_dict()
        assert FAMILIES["modernbert"].our_config(config, size) == MODELS["modernbert"].presets[size] | drawn | windows
    others = {"rope_factor": 1.0, "rope_context": None, "norm_epsilon": 1e-6}
    others |= {"dropout": 0.0, "kv_heads": 32, "rope_base": 10_000.0}
    assert fields == MODELS["llama"].presets["7B"] | drawn | others


def test_rope_theta_is_exported_for_new_and_old_readers():
    family = FAMILIES["llama"]
    sizes = vars(MODELS["llama"].config(99, 17, 2, 36, heads=6, kv_heads=2, rope_base=70.0))
    del sizes["initial_embeddings"], sizes["qkv_bias"]  # not in the table
    written = family.their_config(sizes)
    assert written["rope_parameters"] == {"rope_theta": 70.0, "rope_type": "default"}
    assert (written["rope_theta"], written["rope_scaling"]) == (70.0, None)
    for absent, base in ((["rope_parameters"], 70.0), (["rope_theta"], 70.0), (["rope_parameters", "rope_theta"], 1e4)):
        left = {name: value for name, value in written.items() if name not in absent}
        assert family.our_config(left, "c") == sizes | {"rope_base": base}
    newer = written | {"rope_theta": 50.0}
    assert transformers.LlamaConfig(**newer).rope_parameters["rope_theta"] == 70.0
    assert family.our_config(newer, "c") == sizes


def test_layer_types_are_exported_for_new_and_old_readers():
    family = FAMILIES["modernbert"]
    sizes = {"heads": 3, "width": 30, "global_every": 2, "rope_base": 170.0, "local_rope_base": 50.0}
    ours = vars(MODELS["modernbert"].config(99, 17, 4, **sizes))
    del ours["initial_embeddings"]
    written = family.their_config(ours)
    assert written["rope_parameters"] == {
        "full_attention": {"rope_theta": 170.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 50.0, "rope_type": "default"},
    }
    assert (written["global_rope_theta"], written["local_rope_theta"]) == (170.0, 50.0)
    assert written["layer_types"] == ["full_attention", "sliding_attention"] * 2
    older = {name: value for name, value in written.items() if name not in ("rope_parameters", "layer_types")}
    for config in (written, older, transformers.ModernBertConfig(**written).to_dict()):
        assert family.our_config(config, "c") == ours
    theirs = transformers.ModernBertConfig(**older)
    assert (theirs.rope_parameters, theirs.layer_types) == (written["rope_parameters"], written["layer_types"])


SPECIFIC = {
    "gpt": [
        ("activation_function", "relu", r"activation_function: found 'relu'; expected 'gelu_new' or"),
        ("n_inner", 99, r"n_inner: found 99; expected 84, which follows from the other sizes"),
        ("n_head", 5, r"heads: 5 does not divide width 21"),
        ("n_layer", None, r"n_layer: missing; expected the model's layers"),
        ("tie_word_embeddings", False, r"tie_word_embeddings: found False; expected True"),
    ],
    "llama": [
        ("hidden_act", "gelu", r"hidden_act: found 'gelu'; expected 'silu'"),
        ("rope_parameters", {"rope_type": "llama3"}, r"rope_parameters\.rope_type: found 'llama3'; expected 'default'"),
        ("rope_scaling", {"type": "linear"}, r"rope_scaling: found \{'type': 'linear'\}; expected None"),
        (
            "rope_scaling",
            {"rope_type": "linear", "factor": 2},
            r"rope_type: found 'default'; expected 'llama3', which follows",
        ),
        ("tie_word_embeddings", False, r"lacks lm_head\.weight"),
        ("head_dim", 7, r"head_dim: found 7; expected 6, which follows from the other sizes"),
        ("num_key_value_heads", 4, r"kv_heads: 4 does not divide heads 6"),
        (
            "num_key_value_heads",
            3,
            r"the weights of blocks\.0\.attention\.k\.weight have shape \(12, 36\); expected \(18, 36\)",
        ),
        ("intermediate_size", 49, r"the weights of blocks\.0\.gate\.weight have shape \(50, 36\); expected \(49, 36\)"),
    ],
    "bert": [
        ("hidden_act", "silu", r"hidden_act: found 'silu'; expected 'gelu'"),
        ("max_position_embeddings", 18, r"the weights of positions\.weight have shape \(17, 21\); expected \(18, 21\)"),
    ],
    "modernbert": [
        ("hidden_activation", "silu", r"hidden_activation: found 'silu'; expected 'gelu'"),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn"}}, r"full_attention\.rope_type: found 'yarn'"),
        ("layer_types", ["full_attention"] * 4, r"layer_types: found \['full.*; expected \['full_attention', 'sliding"),
        ("global_attn_every_n_layers", 0, r"layer_types: found"),
        ("intermediate_size", 49, r"the weights of blocks\.0\.up\.weight have shape \(100, 30\); expected \(98, 30\)"),
    ],
    "xlnet": [
        ("ff_activation", "relu", r"ff_activation: found 'relu'; expected 'gelu'"),
        ("clamp_len", 7, r"clamp_len: found 7; expected -1"),
    ],
    "t5": [
        ("feed_forward_proj", "gated-silu", r"feed_forward_proj: found 'gated-silu'; expected relu or gated-gelu"),
        ("num_decoder_layers", 3, r"num_decoder_layers: found 3; expected 2, which follows"),
        ("tie_word_embeddings", False, r"lacks lm_head\.weight"),
        ("d_kv", 7, r"the weights of blocks\.0\.attention\.q\.weight have shape \(18, 21\); expected \(21, 21\)"),
    ],
}


def test_import_refuses_unsupported_settings_by_name(exported, tmp_path):
    for i, (key, value, message) in enumerate(SPECIFIC[exported[0]]):
        folder = edited(exported[2], tmp_path / f"hf{i}", lambda c, key=key, value=value: c.update({key: value}))
        with pytest.raises(UserError, match=message):
            import_hf(folder, tmp_path / "imported")


def test_import_refuses_unfit_weights_by_name(exported, tmp_path):
    family, hf = FAMILIES[exported[0]], exported[2]
    first = family.weights[-1].theirs[0].format(0)
    tied, other = next(iter(family.tied.items()))
    cases = [
        (lambda w: w.pop(first), rf"lacks {first}; expected the weights of a {family.model_class}"),
        (lambda w: w.update({"adapter.x": torch.ones(3)}), r"contains adapter\.x, which"),
        (lambda w: w.update({first: w[first].log() * torch.nan}), r"are not all finite numbers"),
        (lambda w: w.update({first: torch.ones(())}), r"the weights of|not the shapes of"),
        (lambda w: w.update({tied: w[other] + 1}), rf"{tied} differs from {other}; expected them tied"),
    ]
    for i, (tensors, message) in enumerate(cases):
        with pytest.raises(UserError, match=message):
            import_hf(edited(hf, tmp_path / f"hf{i}", tensors=tensors), tmp_path / "imported")
    same = edited(hf, tmp_path / "same", tensors=lambda w: w.update({tied: w[other].clone()}))
    import_hf(same, tmp_path / "imported")


def test_import_refuses_incomplete_folders(exported, tmp_path):
    named = checkpoint.load(exported[1]).tokenizer.file
    reason = "missing" if named == "tokenizer.json" else "not a wordpiece or bytelevel tokenizer of this project"
    for name, message in {
        "config.json": r"config\.json: missing",
        named: rf"tokenizer\.json: {reason}, and tokenizer\.model is missing; expected",
        "model.safetensors": r"model\.safetensors: missing; expected weights as safetensors",
    }.items():
        folder = edited(exported[2], tmp_path / f"without {name}")
        (folder / name).unlink()
        with pytest.raises(UserError, match=message):
            import_hf(folder, tmp_path / "imported")
    for name, message in {"config.json": "not JSON", "model.safetensors": "not a safetensors file"}.items():
        folder = edited(exported[2], tmp_path / f"broken {name}")
        (folder / name).write_bytes(b"\xff{")
        with pytest.raises(UserError, match=message):
            import_hf(folder, tmp_path / "imported")


def test_import_refuses_foreign_tokenizers(tmp_path, tokenizers):
    """The same pieces, read in another way: the ids would be others, and nobody would know."""
    save(tmp_path / "checkpoint", "bert", tokenizers["wordpiece"])
    export_hf(tmp_path / "checkpoint", tmp_path / "hf")
    content = json.loads((tmp_path / "hf/tokenizer.json").read_text())
    steps = content["normalizer"]["normalizers"]
    cases = {
        "encodes texts differently": [
            {"normalizer": content["normalizer"] | {"normalizers": [{"type": "NFKC"}, *steps[1:]]}}
        ],
        "not a wordpiece": [{"normalizer": None}, {"pre_tokenizer": {"type": "Whitespace"}}, {"truncation": {}}],
    }
    cases["encodes texts differently"] += [{"added_tokens": []}, {"post_processor": None}]
    for message, changes in cases.items():
        for change in changes:
            (tmp_path / "hf/tokenizer.json").write_text(json.dumps(content | change))
            with pytest.raises(UserError, match=rf"tokenizer\.json: {message}"):
                import_hf(tmp_path / "hf", tmp_path / "imported")


def test_export_refuses_models_without_a_counterpart(tmp_path, tokenizer):
    save(tmp_path / "xl", "xlnet", tokenizer, objective="causal")
    with pytest.raises(UserError, match=r"trained with the causal objective, which has no counterpart in transformers"):
        export_hf(tmp_path / "xl", tmp_path / "hf")
    save(tmp_path / "tuned", "gpt", tokenizer, head={"task": "period"})
    with pytest.raises(UserError, match=r"is a fine-tuned model; expected a pretrained one"):
        export_hf(tmp_path / "tuned", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_export_round_trips_derived_objectives(tmp_path, tokenizer):
    """Their class reads what a hybrid model is too, a causal one; the checkpoint is the same again."""
    digest = save(tmp_path / "hybrid", "llama", tokenizer, objective="hybrid")
    export_hf(tmp_path / "hybrid", tmp_path / "hf")
    assert json.loads((tmp_path / "hf/config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert import_hf(tmp_path / "hf", tmp_path / "again") == digest
    assert checkpoint.describe(tmp_path / "again").objective == "hybrid"

    def trained_by(name):
        return edited(tmp_path / "hf", tmp_path / name, lambda c: c["plm_checkpoint"].update(objective=name))

    with pytest.raises(UserError, match=r"plm_checkpoint\.objective: found 'masked'; expected causal, or one that"):
        import_hf(trained_by("masked"), tmp_path / "imported")


def test_export_never_overwrites(exported, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty; expected an empty or a new folder"):
        export_hf(exported[1], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
