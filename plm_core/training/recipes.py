"""Recipes: complete training settings for a given number of minutes on one core. Used by the size dial.

In little time a model learns most if few and narrow layers read much text. How that changes with more time is measured
and not derived from a rule: an entry is the best of the shapes, batches and rates that were compared at about that time
on one core (``tests/bench/LOG.md``), with a tokenizer of 8,192 pieces. Those of 60 minutes are measured, but not
compared with others. An entry gives the time in steps: on another machine the same run takes a different time, and
learns the same. Embeddings start from neighbours; GPT and BERT of 20 minutes were compared without.
"""

from dataclasses import dataclass
from typing import Any

from plm_core.config import UserError


@dataclass(frozen=True)
class Recipe:
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


TIMES: dict[str, dict[str, Recipe]] = {
    "5 core-minutes": {
        "gpt": Recipe(layers=2, heads=4, width=128, context=256, rows=32, steps=780, rate=1.5e-2),
        "llama": Recipe(layers=2, heads=4, width=128, context=256, rows=32, steps=780, rate=1.5e-2),
        "bert": Recipe(layers=2, heads=4, width=128, context=128, rows=64, steps=1780, rate=4e-3),
        "modernbert": Recipe(layers=2, heads=4, width=128, context=128, rows=64, steps=1520, rate=7e-3),
        "xlnet": Recipe(layers=2, heads=4, width=128, context=128, rows=64, steps=1030, rate=8e-3),
    },
    "20 core-minutes": {
        "gpt": Recipe(layers=2, heads=4, width=256, context=256, rows=32, steps=1880, rate=8e-3),
        "llama": Recipe(layers=4, heads=4, width=192, context=256, rows=32, steps=1450, rate=9e-3),
        "bert": Recipe(layers=2, heads=4, width=192, context=128, rows=64, steps=5000, rate=3e-3),
        "modernbert": Recipe(layers=2, heads=4, width=192, context=128, rows=64, steps=4150, rate=5e-3),
        "xlnet": Recipe(layers=2, heads=4, width=192, context=128, rows=64, steps=3050, rate=6e-3),
    },
    "60 core-minutes": {
        "gpt": Recipe(layers=4, heads=4, width=256, context=256, rows=32, steps=3250, rate=8e-3, warmup=200),
        "llama": Recipe(layers=4, heads=4, width=256, context=256, rows=32, steps=3000, rate=8e-3, warmup=200),
        "bert": Recipe(layers=2, heads=4, width=256, context=128, rows=64, steps=9440, rate=2.5e-3, warmup=200),
        "modernbert": Recipe(layers=4, heads=4, width=192, context=128, rows=64, steps=8010, rate=4e-3, warmup=200),
        "xlnet": Recipe(layers=2, heads=4, width=256, context=128, rows=64, steps=5760, rate=5e-3, warmup=200),
    },
}
"""By time and by architecture."""
OBJECTIVES: dict[str, dict[str, Any]] = {
    "gpt": {"name": "causal"},
    "llama": {"name": "causal"},
    "bert": {"name": "masked", "rate": 0.3},
    "modernbert": {"name": "masked", "rate": 0.3},
    "xlnet": {"name": "permutation", "predict": 2},
}
"""More predictions from each token than in the papers, whose training runs are far longer."""
MODELS: dict[str, dict[str, Any]] = {"bert": {"initial_attention": "neighbours"}}
"""Model settings of an architecture in addition to its shape."""
REPORTS, VALIDATIONS = 10, 20
"""Steps between two reports, and how many validations and snapshots a run has."""


def recipe_for(time: str, architecture: Any, where: str) -> dict[str, dict[str, Any]]:
    """The sections ``objective``, ``model`` and ``training`` of the recipe, as they would be written under ``where``.

    Raises:
        UserError: the architecture has none.
    """
    found = TIMES[time].get(architecture) if isinstance(architecture, str) else None
    if found is None:
        known = ", ".join(TIMES[time])
        raise UserError(
            f"{where}.size: {time} has no recipe for architecture {architecture!r}; expected one of {known}"
        )
    every = found.steps // (VALIDATIONS * REPORTS) * REPORTS
    shape = {"context": found.context, "layers": found.layers, "heads": found.heads, "width": found.width}
    return {
        "objective": OBJECTIVES[architecture],
        "model": {
            **shape,
            "dropout": 0.0,
            "initializer_range": 0.03,
            "initial_embeddings": "neighbours",
            **MODELS.get(architecture, {}),
        },
        "training": {
            "steps": found.steps,
            "batch": found.rows,
            "precision": "bfloat16",
            "compile": True,
            "report_every": REPORTS,
            "valid_every": every,
            "snapshot_every": every,
            "optimizer": {
                "name": "muon",
                "learning_rate": found.rate,
                "warmup_steps": found.warmup,
                "schedule": "wsd",
                "decay_fraction": 0.4,
                "final_fraction": 0.05,
            },
        },
    }
