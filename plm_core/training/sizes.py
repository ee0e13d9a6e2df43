"""The size dial: minutes fill in all training settings; a depth or a preset fills in shape, batch, rate and warm-up.

Used on a section of the parameters before it is read. Keys that the section contains always take precedence. Minutes
are those of ``recipes``; what a depth or a preset fills in follows from the resulting shape:

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
from typing import Any

from plm_core.config import UserError
from plm_core.sections.models import MODELS
from plm_core.training.recipes import TIMES, recipe_for

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


def sized(section: Any, where: str) -> Any:
    """The section ``pretrain.<name>`` as it would be written without ``size``; unchanged if it has none.

    ``size`` is a time of ``recipes.TIMES``, a depth in layers, or the name of a preset. A time fills in ``model``,
    ``objective`` and ``training`` from its recipe. The others fill in ``model.layers``, ``model.heads`` and
    ``model.width`` (or ``model.preset``), ``training.batch`` in rows, and ``learning_rate`` and ``warmup_steps`` of
    ``training.optimizer``. Existing keys are kept. The given section is not modified. ``where`` is its dotted name.

    Raises:
        UserError: an unknown size, one together with ``model.preset``, or a time for which the architecture has no
            recipe; a key that the rule reads is missing or has a wrong type.
    """
    if not isinstance(section, Mapping) or "size" not in section:
        return section
    size = section["size"]
    rest = {name: value for name, value in section.items() if name != "size"}
    if size is None:
        return rest
    model, training = _part(rest, "model", where), _part(rest, "training", where)
    optimizer = _part(training, "optimizer", f"{where}.training")
    if model.get("preset") is not None:
        raise UserError(f"{where}.size: given together with model.preset; expected one of them")
    if isinstance(size, str) and size in TIMES:
        recipe = recipe_for(size, rest.get("architecture"), where)
        objective = _part(rest, "objective", where)
        if objective.get("name") == recipe["objective"]["name"]:
            objective = recipe["objective"] | objective
        whole = recipe["training"]
        filled = whole["optimizer"]
        if type(steps := training.get("steps")) is int:
            # In fewer steps than the recipe's the warm-up takes the same share of them.
            filled = filled | {"warmup_steps": filled["warmup_steps"] * min(steps, whole["steps"]) // whole["steps"]}
        training = whole | training | {"optimizer": _with_rate(filled, optimizer, where)}
        return rest | {"objective": objective, "model": recipe["model"] | model, "training": training}
    model = _shape(size, rest.get("architecture"), model, where) | model
    published = MODELS[rest["architecture"]].presets[size] if isinstance(size, str) else {}
    layers, width, context = (_whole(published | model, name, where) for name in ("layers", "width", "context"))
    training = {"batch": rows(layers, width, context)} | training
    rule: dict[str, Any] = {"learning_rate": learning_rate(width)}
    if type(steps := training.get("steps")) is int:  # anything else is refused elsewhere
        rule["warmup_steps"] = min(WARMUP, steps // WARMUP_SHARE)
    training["optimizer"] = rule | optimizer
    return rest | {"model": model, "training": training}


def _with_rate(recipe: dict[str, Any], written: dict[str, Any], where: str) -> dict[str, Any]:
    """Merge both optimizers; a kind other than the recipe's needs its own rate, and a schedule other than the recipe's
    has no ``decay_fraction``."""
    if written.get("name", recipe["name"]) != recipe["name"] and "learning_rate" not in written:
        raise UserError(
            f"{where}.training.optimizer.learning_rate: missing; expected together with name {written['name']!r}, "
            f"because the size's rate is that of {recipe['name']}"
        )
    if written.get("schedule", recipe["schedule"]) != recipe["schedule"]:
        recipe = {name: value for name, value in recipe.items() if name != "decay_fraction"}
    return recipe | written


def learning_rate(width: int) -> float:
    """The peak learning rate of a model of this width."""
    return RATE * RATE_WIDTH / width


def rows(layers: int, width: int, context: int) -> int:
    """The rows of a batch, of ``context`` positions each: a power of two."""
    weights = 12 * layers * width**2  # Kaplan et al. 2020, section 2.1
    return max(LEAST_ROWS, 2 ** round(math.log2(TOKENS * (weights / TOKENS_WEIGHTS) ** (1 / 3) / context)))


def _shape(size: Any, architecture: Any, model: dict[str, Any], where: str) -> dict[str, Any]:
    """The model keys of a size; a depth's heads follow the width if the section sets it."""
    if type(size) is int and size >= 1:
        width = _whole({"width": HEAD * size} | model, "width", where)
        return {"layers": size, "heads": max(1, width // HEAD), "width": width}
    if not isinstance(architecture, str) or architecture not in MODELS:
        raise UserError(f"{where}.architecture: found {architecture!r}; expected one of {', '.join(MODELS)}")
    presets = MODELS[architecture].presets
    if not isinstance(size, str) or size not in presets:
        names = ", ".join([*TIMES, *presets])
        raise UserError(f"{where}.size: found {size!r}; expected a depth of at least 1 or one of {names}")
    return {"preset": size}


def _part(section: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """A subsection; empty if it is missing, in which case keys that are not filled in are reported later."""
    found = section.get(name, {})
    if not isinstance(found, Mapping):
        raise UserError(f"{where}.{name}: found {found!r}; expected a section")
    return dict(found)


def _whole(model: Mapping[str, Any], name: str, where: str) -> int:
    value = model.get(name)
    if type(value) is not int or value < 1:
        found = "missing" if name not in model else f"found {value!r}"
        raise UserError(f"{where}.model.{name}: {found}; expected a whole number of at least 1, which size reads")
    return value
