"""The model card of an exported checkpoint: what it is, by what it was judged, how to load it."""

from dataclasses import asdict

from plm_core.checkpoint import Loaded
from plm_core.evaluation.likelihood import named
from plm_core.interchange import tokenizer
from plm_core.interchange.family import Family
from plm_core.objectives import OBJECTIVES
from plm_core.templates import render


def card(loaded: Loaded, family: Family) -> str:
    """The text of ``README.md``."""
    likelihood = OBJECTIVES[loaded.config.objective].likelihood
    return render(
        "plm_core/interchange/card.md.j2",
        family=family,
        loaded=loaded,
        sizes=asdict(loaded.model.config),
        parameters=sum(p.numel() for p in loaded.model.parameters()),
        quantity=named(likelihood.name, loaded.tokenizer),
        meaning=likelihood.meaning,
        tokenizer=tokenizer.DESCRIBED[loaded.tokenizer.kind],
        deviations=tokenizer.deviations(loaded.tokenizer),
    )
