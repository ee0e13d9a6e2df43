"""A training may begin with the weights and the tokenizer of a checkpoint, which are named by their digests."""

import published
import pytest
import torch
import transformers
import yaml
from projects import TRAINING

from plm_core import checkpoint
from plm_core.evaluation.gate_rules import GateRules, MetricRule
from plm_core.models.gpt import GPT
from plm_core.text.cooccurrence import begin_with_neighbours
from plm_core.text.samplers import stream_seed
from plm_core.text.token_store import TokenStore

STILL = {"learning_rate": 1e-30, "warmup_steps": 1, "weight_decay": 0.0}
"""Steps so short that they change no digit leave the weights as they were at the start."""


def imported(small, folder):
    """Import a folder as ``mine``; what the command says to add to the model's section, and to ``tokenizers``."""
    stdout, _ = small.run("tasks.commands.import_", folder, "--name", "mine")
    parts = stdout.split("add to its section of params.yaml:\n")[1]
    return map(yaml.safe_load, parts.split("and its tokenizer, a section of tokenizers that `models` names:\n"))


@pytest.fixture
def start(small):
    """The section ``start`` for the checkpoint of the built project, kept elsewhere."""
    folder = small.root / "artifacts/imported/mine"
    folder.parent.mkdir()
    (small.root / "artifacts/models/gpt").rename(folder)
    return {"checkpoint": "artifacts/imported/mine", "sha256": checkpoint.load(folder).digest}


def test_a_training_begins_with_the_weights_of_a_checkpoint(small, start):
    small.change(pretrain__gpt__start=start, pretrain__gpt__training__optimizer=STILL)
    small.run("tasks.stages.pretrain", "gpt")
    before = checkpoint.load(small.root / start["checkpoint"]).model.state_dict()
    after = checkpoint.load(small.root / "artifacts/models/gpt").model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_initial_embeddings_of_pretrain_are_neighbours(small):
    """Where the parameters ask for neighbours, which are counted in the training text."""
    small.change(
        pretrain__gpt__training__optimizer=STILL,
        pretrain__gpt__model__initial_embeddings="neighbours",
        pretrain__gpt__model__initializer_range=0.04,
    )
    small.run("tasks.stages.pretrain", "gpt")
    loaded = checkpoint.load(small.root / "artifacts/models/gpt").model
    text = TokenStore(small.root / "artifacts/tokens/own/train")
    torch.manual_seed(stream_seed(3, "weights"))
    model = GPT(loaded.config)
    begin_with_neighbours(model.tokens.weight, text, 0.04)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=1e-20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pretrain__gpt__start__checkpoint": "nowhere"},
            "start.checkpoint: nowhere is missing; expected a checkpoint",
        ),
        ({"pretrain__gpt__start__sha256": "0f"}, "start.sha256: artifacts/imported/mine is "),
        (
            {"pretrain__gpt__model__layers": 3, "pretrain__gpt__model__heads": 4},
            "model: found layers: 3, heads: 4; expected layers: 2, heads: 2, as in artifacts/imported/mine, from ",
        ),
        ({"pretrain__gpt__architecture": "llama"}, "architecture: found llama; expected gpt, as in artifacts/imported"),
    ],
)
def test_start_refuses_unfit_checkpoints_early(small, start, changes, message):
    small.change(pretrain__gpt__start=start)
    small.change(**changes)
    assert small.run("tasks.commands.check", code=2)[1].startswith(f"error: pretrain.gpt.{message}")
    assert small.refused("tasks.stages.pretrain", "gpt").startswith(f"error: pretrain.gpt.{message}")


def test_a_checkpoint_with_another_tokenizer_is_refused(small, start):
    """If the tokenizer is given, before the first stage; a trained one is known once it exists."""
    message = "error: pretrain.gpt.start.checkpoint: artifacts/imported/mine was made with another tokenizer; expected "
    small.change(pretrain__gpt__start=start, tokenizers__own__vocab_size=311)
    small.run("tasks.commands.check")
    small.run("tasks.stages.tokenizer", "own")
    small.run("tasks.stages.pack", "own")
    assert small.refused("tasks.stages.pretrain", "gpt").startswith(message)
    small.change(tokenizers__own__given={"file": "artifacts/tokenizers/own/tokenizer.model", "sha256": "0f"})
    assert small.run("tasks.commands.check", code=2)[1].startswith(message)


def test_import_prints_a_section_that_starts_from_it(small):
    """The sizes too, of which not all have a shape."""
    small.run("tasks.commands.export", "exported", "--checkpoint", "artifacts/models/gpt")
    section, given = imported(small, "exported")
    path = small.root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params["pretrain"]["gpt"] |= section
    params["tokenizers"] = given
    params["models"]["gpt"] = "mine"
    path.write_text(yaml.safe_dump(params))
    small.run("tasks.commands.check")
    small.run("tasks.stages.tokenizer", "mine")
    small.run("tasks.stages.pack", "mine")
    small.run("tasks.stages.pretrain", "gpt")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "bytelevel"])
def test_a_tokenizer_of_any_kind_may_be_given(small, tokenizers, kind):
    """Its kind is that of its file; what the parameters say of training is not read."""
    (small.root / "mine").write_bytes(tokenizers[kind].data)
    small.change(tokenizers__own__given={"file": "mine", "sha256": tokenizers[kind].sha256})
    small.run("tasks.stages.tokenizer", "own")
    folder = small.root / "artifacts/tokenizers/own"
    assert {path.name for path in folder.iterdir()} == {tokenizers[kind].file, "SHA256SUMS"}
    assert (folder / tokenizers[kind].file).read_bytes() == tokenizers[kind].data
    small.change(tokenizers__own__given__sha256="0f")
    error = small.refused("tasks.stages.tokenizer", "own")
    assert error == f"error: tokenizers.own.given.sha256: mine is {tokenizers[kind].sha256}; expected 0f"


@pytest.mark.parametrize(("paper", "model"), [("roberta", "bert"), ("llama", "gpt")])
def test_start_from_a_published_model_keeps_its_tokenizer(small, paper, model):
    """From its folder to evidence: likelihood, a fine-tuning, and a folder that transformers loads."""
    published.write(paper, small.root / "theirs")
    section, given = imported(small, "theirs")
    path = small.root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params["pretrain"][model] |= section
    params["tokenizers"] = given
    params["models"] = {model: "mine"}
    params["fewshot"]["models"] = [name for name in ("gpt",) if name == model]
    if paper == "roberta":
        params["pretrain"]["bert"]["objective"] = {"name": "masked", "rate": 0.3}
    path.write_text(yaml.safe_dump(params))
    small.run("tasks.commands.check")
    for command in (["tokenizer", "mine"], ["pack", "mine"]):
        small.run(f"tasks.stages.{command[0]}", *command[1:])
    small.run("tasks.stages.pretrain", model)
    small.run("tasks.stages.evaluate", model)
    small.run("tasks.stages.finetune", model, "next", "1")
    loaded = checkpoint.load(small.root / f"artifacts/models/{model}")
    assert loaded.config.step > 0
    assert loaded.tokenizer.kind == "published"
    small.run("tasks.commands.export", "again", "--checkpoint", f"artifacts/models/{model}")
    assert transformers.AutoModel.from_pretrained(small.root / "again").config.model_type == paper


def test_report_shows_the_benefit_of_a_start(small):
    """An encoder published without a head: as it is it predicts nothing, so its likelihood and its pairs are not known;
    the table has what all are measured on, and the gate judges no task that a champion cannot do."""
    published.write("bert-encoder", small.root / "theirs")
    small.run("tasks.commands.init", "data", "--start=theirs", "--yes", "--add", code=2)  # a source already
    small.run("tasks.commands.init", "data", "--start=theirs", "--yes")
    path = small.root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    few = TRAINING | {"optimizer": {"learning_rate": 0.005, "warmup_steps": 5, "head_steps": 3}}
    params["pretrain"]["theirs"] |= {
        "training": few,
        "row_length": 20,
        "lora": {"rank": 2, "alpha": 4, "targets": ["attention", "feed_forward"]},
    }
    params["pretrain"]["theirs-scratch"] |= {"training": few | {"compile": False}}
    params["pretrain"]["theirs-scratch"] |= {"model": {"context": 29, "width": 16}}
    params["clean"] = {}
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    assert params["models"] == dict.fromkeys(["theirs-published", "theirs", "theirs-scratch"], "theirs")
    small.reproduce()
    assert "valid_loss" not in small.metrics("pretrain-theirs-published")
    loaded = [
        checkpoint.load(small.root / folder) for folder in ("artifacts/models/theirs", "artifacts/imported/theirs")
    ]
    same = {
        name
        for name, tensor in loaded[0].model.state_dict().items()
        if tensor.equal(loaded[1].model.state_dict()[name])
    }
    assert "tokens.weight" in same
    assert "transform.weight" not in same
    assert not {"blocks.0.attention.qkv.weight", "blocks.1.down.weight"} & same
    text = (small.root / "artifacts/report/results.md").read_text()
    worth = text.split("## Was it worth it? theirs\n")[1].split("\n## ")[0]
    assert "- Carried on, versus as published (theirs-published): " in worth
    assert "- Carried on, versus from scratch (theirs-scratch): " in worth
    (likelihood,) = (line for line in worth.splitlines() if line.startswith("| likelihood"))
    assert likelihood.count("not known") == 2  # of the start, and of the 5-gram, which is asked something else
    assert worth.count("| passages: ndcg at 10 |") == 1
    rules = GateRules("score", 0.05, 0.01, {"score": MetricRule("higher", 0.03)})
    evidence = small.root / "artifacts/evidence"
    assert rules.for_evidence(evidence / "theirs").tasks() == ["own-pairs/score", "passages/score"]
    assert rules.for_evidence(evidence / "theirs", evidence / "theirs-published").tasks() == ["passages/score"]


def test_start_with_an_extended_tokenizer(small):
    """Made by the stage; new rows begin as means, and a start with another tokenizer is still refused."""
    published.write("llama", small.root / "theirs")
    section, given = imported(small, "theirs")
    path = small.root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params["pretrain"]["gpt"] |= section
    params["pretrain"]["gpt"]["training"]["optimizer"] = STILL
    params["tokenizers"] = {"mine": given["mine"] | {"extend": 9}}
    params["models"] = {"gpt": "mine"}
    path.write_text(yaml.safe_dump(params))
    small.run("tasks.commands.check")
    for command in (["tokenizer", "mine"], ["pack", "mine"], ["pretrain", "gpt"], ["evaluate", "gpt"]):
        small.run(f"tasks.stages.{command[0]}", *command[1:])
    before = checkpoint.load(small.root / "artifacts/imported/mine")
    after = checkpoint.load(small.root / "artifacts/models/gpt")
    old, new = before.tokenizer, after.tokenizer
    assert new.vocab_size == old.vocab_size + 9
    weights = after.model.state_dict()
    for name in ("tokens.weight", "unembed.weight"):
        assert torch.equal(weights[name][: old.vocab_size], before.model.state_dict()[name])
        for token, parts in enumerate(new.parts, old.vocab_size):
            assert torch.equal(weights[name][token], weights[name][parts].mean(0))
    # The one that was made may be given, and is accepted with the same start; what is larger than the text is not.
    made = small.root / "made/tokenizer.published.json"
    made.parent.mkdir()
    made.write_bytes(new.data)
    small.change(tokenizers__mine={"given": {"file": "made/tokenizer.published.json", "sha256": new.sha256}})
    small.run("tasks.commands.check")
    small.change(tokenizers__mine__extend=99999)
    error = small.refused("tasks.stages.tokenizer", "mine")
    assert error.startswith("error: tokenizers.mine.extend: 99999 is more than this corpus supports; expected at most ")
    published.write("roberta", small.root / "others")
    small.run("tasks.commands.import_", "others", "--name", "other")
    other = (small.root / "artifacts/imported/other/tokenizer.published.json").read_bytes()
    assert other != old.data
    small.change(
        tokenizers__mine={"given": {"file": "artifacts/imported/other/tokenizer.published.json", "sha256": "0f"}}
    )
    assert "artifacts/imported/mine was made with another tokenizer" in small.run("tasks.commands.check", code=2)[1]
