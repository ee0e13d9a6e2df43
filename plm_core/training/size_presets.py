"""The size dial: minutes fill in all training settings; a depth or a preset fills in shape, batch, rate and warm-up.

Used on a section of the parameters before it is read. Keys that the section contains always take precedence.

**Minutes.** In a short time, a model learns most if it has few, narrow layers that read much text. How that changes
with more time was measured, not derived from a rule: a recipe is the best of the shapes, batches and rates that were
compared at about that time on one core (``tests/bench/LOG.md``), with a tokenizer of 8,192 pieces. The recipes for 60
minutes were measured, but not compared with others. All use ``initial_embeddings: neighbours``; those of GPT and BERT
for 20 minutes were compared without it. A recipe gives its time in steps: on another machine the same run takes more or
less time, but learns the same.

With a ``start`` the minutes fill in only the training: rows of 128 tokens without dropout, as many steps as the start's
own size allows in that time, and half the rate for its width, with a new warm-up and lower rates in lower layers.

**A depth or a preset.** What it fills in follows from the resulting shape:

- shape: a depth of d layers has d heads of 64 and so a width of 64 d (nanochat's dial has the same proportions); a
  preset is a published size of the architecture;
- learning rate: 6e-4 at a width of 768, in inverse proportion to the width, as for Adam (Yang et al. 2022,
  "Tensor Programs V", table 3). The rates of Brown et al. 2020, table 2.1, are 33 % lower at a width of 1024, within
  17 % from 1536 to 5140, and 60 % higher at 12288. RoBERTa (Liu et al. 2019) has the same 6e-4 at 768; at 1024 it and
  XLNet (Yang et al. 2019) have 4e-4, 11 % lower;
- warm-up: 2,000 steps (Radford et al. 2018, section 4.1), or a tenth of fewer than 20,000. RoBERTa's is 5 % of its
  steps and XLNet's 8 %;
- batch: 2^19 tokens for 124 million weights in the blocks, growing with the cube root of their number; rounded to a
  power of two of rows, at least 8. This matches six of the eight batches of Brown et al. 2020, table 2.1, and is twice
  that of 760M and 1.3 times that of 175B. BERT was trained with a quarter of it, RoBERTa and XLNet with eight times as
  much. It is a batch for a large corpus and a GPU: set a smaller one otherwise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plm_core.config import UserError
from plm_core.configs.architectures import MODELS, TransformerConfig

HEAD = 64
"""The width of a head (Vaswani et al. 2017, section 3.2.2, and all published sizes up to the largest GPT-2)."""
RATE = 6e-4
RATE_WIDTH = 768
"""The learning rate of the smallest model of Brown et al. 2020, table 2.1, and its width."""
TOKENS = 2**19
TOKENS_WEIGHTS = 124e6
"""The tokens of its batch, and the number of weights with which they fit the table's other rows best."""
LEAST_ROWS = 8
WARMUP = 2_000
WARMUP_SHARE = 10
"""The warm-up is one step in this many, if there are few."""
REPORTS, VALIDATIONS = 10, 20
"""In a recipe: steps between two reports, and how many validations and snapshots a run has."""
CORE = 1.3e11
"""FLOP/s of one core in continued pretraining of MiniLM, counting 6 per weight and token."""
ROW, ROWS = 128, 8
"""Tokens per row and rows per batch in continued pretraining of a published model."""
CARRIED_ON_VALIDATIONS = 4
"""How often it is validated; one validation takes as long as a few steps."""
VOCABULARY = 32_000
"""The approximate vocabulary size of published models."""
AGAIN = 0.5
"""The peak learning rate of continued pretraining, as a share of that of a model from scratch."""
LOWEST = 0.12
"""Its rate in the lowest layer, as a share of that in the highest. With one rate for all layers, a model forgets what
it knew about other tasks."""


@dataclass(frozen=True)
class SizeRecipe:
    """The settings that differ between times and architectures."""

    layers: int
    heads: int
    width: int
    context: int
    rows: int
    steps: int
    rate: float
    """The peak learning rate."""
    warmup: int = 100
    """Steps."""


TIMES: dict[str, dict[str, SizeRecipe]] = {
    "5 core-minutes": {
        "gpt": SizeRecipe(layers=2, heads=4, width=128, context=256, rows=32, steps=780, rate=1.5e-2),
        "llama": SizeRecipe(layers=2, heads=4, width=128, context=256, rows=32, steps=780, rate=1.5e-2),
        "bert": SizeRecipe(layers=2, heads=4, width=128, context=128, rows=64, steps=1780, rate=4e-3),
        "modernbert": SizeRecipe(layers=2, heads=4, width=128, context=128, rows=64, steps=1520, rate=7e-3),
        "xlnet": SizeRecipe(layers=2, heads=4, width=128, context=128, rows=64, steps=1030, rate=8e-3),
    },
    "20 core-minutes": {
        "gpt": SizeRecipe(layers=2, heads=4, width=256, context=256, rows=32, steps=1880, rate=8e-3),
        "llama": SizeRecipe(layers=4, heads=4, width=192, context=256, rows=32, steps=1450, rate=9e-3),
        "bert": SizeRecipe(layers=2, heads=4, width=192, context=128, rows=64, steps=5000, rate=3e-3),
        "modernbert": SizeRecipe(layers=2, heads=4, width=192, context=128, rows=64, steps=4150, rate=5e-3),
        "xlnet": SizeRecipe(layers=2, heads=4, width=192, context=128, rows=64, steps=3050, rate=6e-3),
    },
    "60 core-minutes": {
        "gpt": SizeRecipe(layers=4, heads=4, width=256, context=256, rows=32, steps=3250, rate=8e-3, warmup=200),
        "llama": SizeRecipe(layers=4, heads=4, width=256, context=256, rows=32, steps=3000, rate=8e-3, warmup=200),
        "bert": SizeRecipe(layers=2, heads=4, width=256, context=128, rows=64, steps=9440, rate=2.5e-3, warmup=200),
        "modernbert": SizeRecipe(layers=4, heads=4, width=192, context=128, rows=64, steps=8010, rate=4e-3, warmup=200),
        "xlnet": SizeRecipe(layers=2, heads=4, width=256, context=128, rows=64, steps=5760, rate=5e-3, warmup=200),
    },
}
"""Recipes by time and by architecture."""
OBJECTIVES: dict[str, dict[str, Any]] = {
    "gpt": {"name": "causal"},
    "llama": {"name": "causal"},
    "bert": {"name": "masked", "rate": 0.3},
    "modernbert": {"name": "masked", "rate": 0.3},
    "xlnet": {"name": "permutation", "predict": 2},
}
"""More predictions from each token than in the papers, whose training runs are far longer."""
BEGINNINGS: dict[str, dict[str, Any]] = {"bert": {"initial_attention": "neighbours"}}
"""Model settings of an architecture in addition to its shape."""


def recipe_for(time: str, architecture: Any, where: str) -> dict[str, dict[str, Any]]:
    """The sections ``objective``, ``model`` and ``training`` of the recipe, as they would be written under ``where``.

    Raises:
        UserError: the architecture has none.
    """
    recipe = TIMES[time].get(architecture) if isinstance(architecture, str) else None
    if recipe is None:
        able = ", ".join(TIMES[time])
        raise UserError(f"{where}.size: {time} has no recipe for architecture {architecture!r}; expected one of {able}")
    every = recipe.steps // (VALIDATIONS * REPORTS) * REPORTS
    return {
        "objective": OBJECTIVES[architecture],
        "model": {
            **{name: getattr(recipe, name) for name in ("context", "layers", "heads", "width")},
            "dropout": 0.0,
            "initializer_range": 0.03,
            "initial_embeddings": "neighbours",
            **BEGINNINGS.get(architecture, {}),
        },
        "training": {
            "steps": recipe.steps,
            "batch": recipe.rows,
            "precision": "bfloat16",
            "compile": True,
            "report_every": REPORTS,
            "valid_every": every,
            "snapshot_every": every,
            "optimizer": {
                "name": "muon",
                "learning_rate": recipe.rate,
                "warmup_steps": recipe.warmup,
                "schedule": "wsd",
                "decay_fraction": 0.4,
                "final_fraction": 0.05,
            },
        },
    }


def carried_on(time: str, model: Mapping[str, Any], share: float, where: str) -> dict[str, Any]:
    """What the recipe of a time fills into a section with a ``start``, whose sizes are ``model``.

    ``share`` is the share of a row's tokens that are predicted.

    Raises:
        UserError: a size that the recipe reads is missing or not a whole number.
    """
    layers, width = (_whole(model, name, where) for name in ("layers", "width"))
    weights = block_weights(layers, width) + share * VOCABULARY * width
    updates = CORE * 60 * int(time.split()[0]) / (6 * weights * ROWS * ROW)
    steps = max(2 * REPORTS, int(updates) // REPORTS * REPORTS)
    every = math.ceil(steps / (CARRIED_ON_VALIDATIONS * REPORTS)) * REPORTS
    return {
        "steps": steps,
        "batch": ROWS,
        "precision": "bfloat16",
        "report_every": REPORTS,
        "valid_every": every,
        "snapshot_every": every,
        "optimizer": {
            "learning_rate": AGAIN * learning_rate(width),
            "warmup_steps": steps // WARMUP_SHARE,
            "head_steps": steps // (2 * WARMUP_SHARE),
            "layer_decay": round(LOWEST ** (1 / layers), 2),
            "schedule": "linear",
            "final_fraction": 0.0,
            "weight_decay": 0.01,
        },
    }


def block_weights(layers: int, width: int) -> int:
    """Approximately the number of weights in a model's blocks (Kaplan et al. 2020, section 2.1)."""
    return 12 * layers * width**2


def operations(section: Mapping[str, Any], vocabulary: int) -> float:
    """FLOPs of a step of a section without ``size``: 6 per weight and token (output layer: per predicted token)."""
    model = section["model"]
    share = section["objective"].get("rate", 1.0)
    weights = block_weights(model["layers"], model["width"]) + share * vocabulary * model["width"]
    return 6.0 * weights * section["training"]["batch"] * section.get("row_length", model["context"])


def learning_rate(width: int) -> float:
    """The peak learning rate of a model of this width."""
    return RATE * RATE_WIDTH / width


def batch_rows(layers: int, width: int, context: int) -> int:
    """The rows of a batch, of ``context`` positions each: a power of two."""
    share = block_weights(layers, width) / TOKENS_WEIGHTS
    return max(LEAST_ROWS, 2 ** round(math.log2(TOKENS * share ** (1 / 3) / context)))


def fill_in_size(section: Any, where: str) -> Any:
    """The section ``pretrain.<name>`` as it would be written without ``size``; unchanged if it has none.

    ``size`` is a time of ``TIMES``, a depth in layers, or the name of a preset; ``where`` is the section's dotted name.
    The given section is not modified.

    Raises:
        UserError: an unknown size, one together with ``model.preset``, or a time for which the architecture has no
            recipe; a key that the rule reads is missing or has a wrong type.
    """
    if not isinstance(section, Mapping) or "size" not in section:
        return section
    size = section["size"]
    architecture = section.get("architecture")
    rest = {name: value for name, value in section.items() if name != "size"}
    if size is None:
        return rest
    model, training = _part(rest, "model", where), _part(rest, "training", where)
    optimizer = _part(training, "optimizer", f"{where}.training")
    if model.get("preset") is not None:
        raise UserError(f"{where}.size: given together with model.preset; expected one of them")

    # A time, with a start: how to train it.
    if isinstance(size, str) and size in TIMES and section.get("start"):
        rate = _part(rest, "objective", where).get("rate", 1.0)
        filled = carried_on(size, model, rate if isinstance(rate, float) else 1.0, where)
        training = filled | training | {"optimizer": filled["optimizer"] | optimizer}
        row = {"row_length": min(ROW, _whole(model, "context", where))}
        return row | rest | {"model": {"dropout": 0.0} | model, "training": training}

    # A time: everything from its recipe.
    if isinstance(size, str) and size in TIMES:
        recipe = recipe_for(size, architecture, where)
        objective = _part(rest, "objective", where)
        if objective.get("name") == recipe["objective"]["name"]:
            objective = recipe["objective"] | objective
        whole = recipe["training"]
        filled = dict(whole["optimizer"])
        if type(steps := training.get("steps")) is int:
            # With fewer steps than the recipe's, the warm-up takes the same share of them.
            filled["warmup_steps"] = filled["warmup_steps"] * min(steps, whole["steps"]) // whole["steps"]
        # A learning rate is only valid for its optimizer, a decay fraction for its schedule.
        if optimizer.get("name", filled["name"]) != filled["name"] and "learning_rate" not in optimizer:
            raise UserError(
                f"{where}.training.optimizer.learning_rate: missing; expected together with name "
                f"{optimizer['name']!r}, because the size's rate is that of {filled['name']}"
            )
        if optimizer.get("schedule", filled["schedule"]) != filled["schedule"]:
            del filled["decay_fraction"]
        training = whole | training | {"optimizer": filled | optimizer}
        return rest | {"objective": objective, "model": recipe["model"] | model, "training": training}

    # A depth or a preset: the shape, and what follows from it. A depth's heads follow the width if one is given.
    published: dict[str, Any] = {}
    if type(size) is int and size >= 1:
        width = _whole({"width": HEAD * size} | model, "width", where)
        entry = MODELS.get(str(architecture))
        heads = {"heads": max(1, width // HEAD)} if entry and issubclass(entry.config, TransformerConfig) else {}
        model = {"layers": size, "width": width} | heads | model
    else:
        if not isinstance(architecture, str) or architecture not in MODELS:
            raise UserError(f"{where}.architecture: found {architecture!r}; expected one of {', '.join(MODELS)}")
        presets = MODELS[architecture].presets
        if not isinstance(size, str) or size not in presets:
            names = ", ".join([*TIMES, *presets])
            raise UserError(f"{where}.size: found {size!r}; expected a depth of at least 1 or one of {names}")
        published = dict(presets[size])
        model = {"preset": size} | model
    layers, width, context = (_whole(published | model, name, where) for name in ("layers", "width", "context"))
    rule: dict[str, Any] = {"learning_rate": learning_rate(width)}
    if type(steps := training.get("steps")) is int:  # anything else is refused elsewhere
        rule["warmup_steps"] = min(WARMUP, steps // WARMUP_SHARE)
    training = {"batch": batch_rows(layers, width, context)} | training | {"optimizer": rule | optimizer}
    return rest | {"model": model, "training": training}


def _part(section: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """A subsection; empty if it is missing, in which case keys that are not filled in are reported later."""
    part = section.get(name, {})
    if not isinstance(part, Mapping):
        raise UserError(f"{where}.{name}: found {part!r}; expected a section")
    return dict(part)


def _whole(model: Mapping[str, Any], name: str, where: str) -> int:
    value = model.get(name)
    if type(value) is not int or value < 1:
        problem = "missing" if name not in model else f"found {value!r}"
        raise UserError(f"{where}.model.{name}: {problem}; expected a whole number of at least 1, which size reads")
    return value
