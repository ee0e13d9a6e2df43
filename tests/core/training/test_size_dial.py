"""The size dial beside the published table, and what a section may override."""

import copy

import pytest

from plm_core import checkpoint
from plm_core.config import UserError, from_dict
from plm_core.training.size_presets import OBJECTIVES, TIMES, batch_rows, fill_in_size, learning_rate, recipe_for
from plm_core.training.training_config import LoopConfig, OptimizerConfig
from tasks.parameters.pretrain_config import PretrainConfig, require_trainable

# Brown et al. 2020, table 2.1: layers, width, batch in 2^20 tokens, learning rate.
TABLE = {
    "125M": (12, 768, 0.5, 6.0e-4),
    "350M": (24, 1024, 0.5, 3.0e-4),
    "760M": (24, 1536, 0.5, 2.5e-4),
    "1.3B": (24, 2048, 1, 2.0e-4),
    "2.7B": (32, 2560, 1, 1.6e-4),
    "6.7B": (32, 4096, 2, 1.2e-4),
    "13B": (40, 5140, 2, 1.0e-4),
    "175B": (96, 12288, 3.2, 0.6e-4),
}
OPTIMIZER = {"warmup_steps": 5}
SECTION = {
    "architecture": "gpt",
    "objective": {"name": "causal"},
    "model": {"context": 256, "dropout": 0.0},
    "training": {"seed": 1, "steps": 7, "optimizer": OPTIMIZER},
}


def test_size_rule_matches_the_published_table():
    batches = {
        name: batch_rows(layers, width, 2048) / 2**9 / tokens for name, (layers, width, tokens, _) in TABLE.items()
    }
    assert batches == dict.fromkeys(TABLE, 1.0) | {"760M": 2.0, "175B": 1.25}
    lower = {name: round(rate / learning_rate(width) - 1, 2) for name, (_, width, _, rate) in TABLE.items()}
    assert list(lower.values()) == [0.0, -0.33, -0.17, -0.11, -0.11, 0.07, 0.12, 0.60]


@pytest.mark.parametrize(
    ("size", "layers", "heads", "width", "batch", "rate"),
    [(1, 1, 1, 64, 128, 7.2e-3), (4, 4, 4, 256, 512, 1.8e-3), (12, 12, 12, 768, 2048, 6e-4)],
)
def test_size_by_depth_fills_in_shape_batch_and_learning_rate(size, layers, heads, width, batch, rate):
    section = SECTION | {"size": size}
    before = copy.deepcopy(section)
    filled = fill_in_size(section, "pretrain.gpt")
    assert section == before
    assert filled == {
        "architecture": "gpt",
        "objective": {"name": "causal"},
        "model": {"context": 256, "dropout": 0.0, "layers": layers, "heads": heads, "width": width},
        "training": {
            "seed": 1,
            "steps": 7,
            "batch": batch,
            "optimizer": {"warmup_steps": 5, "learning_rate": pytest.approx(rate)},
        },
    }


@pytest.mark.parametrize(
    ("architecture", "size", "rate", "batch", "memory"),
    [("gpt", "small", 6e-4, 512, None), ("bert", "large", 4.5e-4, 1024, None), ("xlnet", "base", 6e-4, 1024, 384)],
)
def test_a_name_is_a_published_size(architecture, size, rate, batch, memory):
    section = SECTION | {"architecture": architecture, "size": size, "model": {}}
    filled = fill_in_size(section, "p")
    assert filled["training"]["optimizer"]["learning_rate"] == pytest.approx(rate)
    assert filled["training"]["batch"] == batch
    shape = checkpoint.shape(architecture, filled["model"] | {"vocab_size": 99}, "p")
    assert shape == checkpoint.shape(architecture, {"preset": size, "vocab_size": 99}, "p")
    assert getattr(shape, "memory", None) == memory


def test_size_keeps_explicit_values_and_derives_the_rest():
    model = {"context": 64, "width": 384}
    written = SECTION | {"size": 3, "model": model, "training": SECTION["training"] | {"batch": 24}}
    filled = fill_in_size(written, "p")
    assert filled["model"] == {"context": 64, "width": 384, "layers": 3, "heads": 6}
    assert filled["training"]["batch"] == 24
    assert filled["training"]["optimizer"]["learning_rate"] == learning_rate(384)
    filled = fill_in_size(SECTION | {"size": 3, "training": {"optimizer": OPTIMIZER | {"learning_rate": 0.7}}}, "p")
    assert filled["training"] == {"batch": batch_rows(3, 192, 256), "optimizer": OPTIMIZER | {"learning_rate": 0.7}}
    filled = fill_in_size(SECTION | {"size": "small", "model": {"context": 32, "layers": 2}}, "p")
    assert filled["model"] == {"preset": "small", "context": 32, "layers": 2}
    assert filled["training"]["batch"] == batch_rows(2, 768, 32)


@pytest.mark.parametrize(("steps", "warmup"), [(7, 0), (450, 45), (19_999, 1_999), (500_000, 2_000)])
def test_warmup_is_that_of_gpt_or_a_tenth_of_the_steps(steps, warmup):
    training = {"seed": 1, "steps": steps}
    assert (
        fill_in_size(SECTION | {"size": 3, "training": training}, "p")["training"]["optimizer"]["warmup_steps"]
        == warmup
    )


def test_size_batch_has_at_least_eight_rows():
    assert batch_rows(1, 64, 2**17) == 8


RECIPES = [(time, architecture) for time, recipes in TIMES.items() for architecture in recipes]


@pytest.mark.parametrize(("time", "architecture"), RECIPES)
def test_size_by_time_fills_in_a_valid_training(time, architecture):
    objective = {"name": OBJECTIVES[architecture]["name"]}
    section = {"architecture": architecture, "objective": objective, "size": time, "training": {"seed": 1}}
    filled = fill_in_size(section, "p")
    config = from_dict(PretrainConfig, filled, "p")
    require_trainable(config, 8192, "p")
    recipe, loop = TIMES[time][architecture], config.training
    assert (loop.steps, loop.batch, loop.optimizer.learning_rate) == (recipe.steps, recipe.rows, recipe.rate)
    assert loop.steps / 30 < loop.valid_every <= loop.steps / 20
    assert fill_in_size(filled | {"size": time}, "p") == filled


def test_size_by_time_keeps_explicit_values():
    written = {"model": {"width": 64, "dropout": 0.2}, "training": {"seed": 3, "optimizer": {"clip_norm": 2.0}}}
    section = {"architecture": "gpt", "objective": {"name": "hybrid", "rate": 0.4}, "size": "5 core-minutes"} | written
    filled, recipe = fill_in_size(section, "p"), recipe_for("5 core-minutes", "gpt", "p")
    assert filled["model"] == recipe["model"] | written["model"]
    assert filled["objective"] == section["objective"]  # the recipe's is another objective
    assert filled["training"]["optimizer"] == recipe["training"]["optimizer"] | {"clip_norm": 2.0}
    assert filled["training"]["seed"] == 3
    assert filled["training"]["precision"] == "bfloat16"
    masked = section | {"architecture": "bert", "objective": {"name": "masked", "packing": "documents"}}
    assert fill_in_size(masked, "p")["objective"] == {"name": "masked", "rate": 0.3, "packing": "documents"}
    adamw = written | {"training": {"optimizer": {"name": "adamw", "learning_rate": 0.5}}}
    assert fill_in_size(section | adamw, "p")["training"]["optimizer"]["learning_rate"] == 0.5
    for steps, warmup in ((90, 11), (780, 100), (7_800, 100)):
        fewer = fill_in_size(section | {"training": {"steps": steps}}, "p")["training"]["optimizer"]
        assert fewer == recipe["training"]["optimizer"] | {"warmup_steps": warmup}
    cosine = {"training": {"optimizer": {"schedule": "cosine"}}}
    assert OptimizerConfig(**fill_in_size(section | cosine, "p")["training"]["optimizer"]).schedule == "cosine"


def test_a_section_without_a_size_is_left_as_it_is():
    assert fill_in_size(SECTION, "p") is SECTION
    assert fill_in_size(SECTION | {"size": None}, "p") == SECTION
    assert fill_in_size("text", "p") == "text"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"size": "tiny"},
            r"^p\.g\.size: found 'tiny'; expected a depth of at least 1 or one of 5 core.*, small, m",
        ),
        ({"size": "base"}, r"^p\.g\.size: found 'base'"),  # of BERT, not of GPT
        ({"size": 0}, r"^p\.g\.size: found 0"),
        ({"size": True}, r"^p\.g\.size: found True"),
        ({"size": 2.5}, r"^p\.g\.size: found 2\.5"),
        ({"size": "small", "architecture": "rnn"}, r"^p\.g\.architecture: found 'rnn'"),
        ({"size": "small", "architecture": ["gpt"]}, r"^p\.g\.architecture: found \['gpt'\]"),
        ({"model": {"preset": "small"}}, r"^p\.g\.size: given together with model\.preset"),
        ({"model": {}}, r"^p\.g\.model\.context: missing; expected a whole number"),
        ({"model": {"context": "256"}}, r"^p\.g\.model\.context: found '256'; expected a whole number"),
        ({"model": {"context": 256, "width": 0}}, r"^p\.g\.model\.width: found 0"),
        ({"model": {"context": 256, "layers": 2.0}}, r"^p\.g\.model\.layers: found 2\.0"),
        ({"model": None}, r"^p\.g\.model: found None; expected a section"),
        ({"training": 3}, r"^p\.g\.training: found 3; expected a section"),
        (
            {"size": "5 core-minutes", "architecture": "electra"},
            r"^p\.g\.size: 5 core-minutes has no recipe for .*'el",
        ),
        ({"size": "5 core-minutes", "objective": 3}, r"^p\.g\.objective: found 3; expected a section"),
        (
            {"size": "5 core-minutes", "training": {"optimizer": {"name": "adamw"}}},
            r"^p\.g\.training\.optimizer\.learning_rate: missing; expected together with name 'adamw', .* that of muon",
        ),
        ({"training": {"optimizer": [1]}}, r"^p\.g\.training\.optimizer: found \[1\]; expected a section"),
    ],
)
def test_invalid_size_is_refused_by_dotted_name(changed, message):
    with pytest.raises(UserError, match=message):
        fill_in_size(SECTION | {"size": 4} | changed, "p.g")


def test_size_by_time_with_a_start_fills_in_training():
    """Steps are inversely proportional to what a step costs, and to the share of the time."""
    section = {
        "architecture": "bert",
        "objective": {"name": "masked", "rate": 0.3},
        "model": {"context": 512, "layers": 6, "heads": 12, "width": 384},
        "start": {"checkpoint": "mine", "sha256": "0f"},
        "size": "5 core-minutes",
        "training": {"seed": 1, "optimizer": {"weight_decay": 0.1}},
    }
    filled = fill_in_size(section, "pretrain.mine")
    assert filled["model"] == section["model"] | {"dropout": 0.0}
    assert filled["row_length"] == 128
    loop = from_dict(LoopConfig, filled["training"], "training")
    assert (loop.optimizer.weight_decay, loop.optimizer.learning_rate) == (0.1, pytest.approx(6e-4))
    longer = fill_in_size(section | {"size": "20 core-minutes"}, "pretrain.mine")["training"]
    assert longer["steps"] == pytest.approx(4 * loop.steps, abs=40)
    deeper = fill_in_size(section | {"model": section["model"] | {"layers": 24}}, "pretrain.mine")["training"]
    assert loop.steps / 4 <= deeper["steps"] < loop.steps / 2
    # The lowest layer's share of the highest rate does not depend on the depth.
    assert deeper["optimizer"]["layer_decay"] ** 24 == pytest.approx(loop.optimizer.layer_decay**6, rel=0.2)
