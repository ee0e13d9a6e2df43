"""The sections ``model`` of the architectures: sizes, and the published ones by name. Read without torch.

Used by the model files and by who checks parameters before anything runs.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from plm_core.config import Probability, UserError, from_dict, section

if TYPE_CHECKING:
    from torch import nn


@section
class TransformerConfig:
    """What the section ``model`` of every architecture states; the vocabulary comes from the tokenizer."""

    vocab_size: PositiveInt
    """V, the number of token ids."""
    context: PositiveInt
    """The largest T: how many positions are read at once, each with an embedding where the paper has absolute ones."""
    layers: PositiveInt
    """L, the number of blocks."""
    heads: PositiveInt
    """H, attention heads a block; must divide ``width``."""
    width: PositiveInt
    """D, the size of the residual stream."""
    dropout: Probability = 0.1
    """The probability of zeroing an activation: embeddings, attention weights and both residual branches."""
    initializer_range: PositiveFloat = 0.02
    """The deviation of initial weights. As published; narrow models learn sooner with a larger one."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide width {self.width}")


@section
class GPTConfig(TransformerConfig):
    """Section ``model`` of a GPT."""


@section
class BERTConfig(TransformerConfig):
    """Section ``model`` of a BERT."""

    segments: PositiveInt = 2
    """S, how many segments have an embedding."""
    initial_attention: Literal["drawn", "neighbours"] = "drawn"
    """What heads read before they have learned: anything, as published, or half of them one neighbour each, which some
    heads of trained models do. In trainings of some minutes a masked model does not find its neighbours by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_attention == "neighbours" and self.width // self.heads % 2:
            size = self.width // self.heads
            raise ValueError(f"initial_attention: heads of {size} ({self.width} / {self.heads}); expected an even size")


@section
class ELECTRAConfig(TransformerConfig):
    """Section ``model`` of an ELECTRA, of the discriminator where nothing else is said. Both have as many layers."""

    generator_heads: PositiveInt | None = None
    """The generator's heads, each as wide as the discriminator's (table 6); null for a quarter of these, at least one.
    The paper finds generators of a quarter to half the size best (section 3.2)."""
    embedding: PositiveInt | None = None
    """E, the size of the embeddings, which both share; null for ``width``."""
    segments: PositiveInt = 2
    """S, how many segments have an embedding."""

    @property
    def discriminator(self) -> BERTConfig:
        """The sizes of the discriminator's blocks."""
        return self._blocks(self.heads)

    @property
    def generator(self) -> BERTConfig:
        """The sizes of the generator's blocks."""
        return self._blocks(self.generator_heads or max(1, self.heads // 4))

    def _blocks(self, heads: int) -> BERTConfig:
        width = heads * self.width // self.heads
        return BERTConfig(self.vocab_size, self.context, self.layers, heads, width, dropout=self.dropout)


@section
class XLNetConfig(TransformerConfig):
    """Section ``model`` of an XLNet, whose distances have no largest value."""

    memory: NonNegativeInt = 0
    """M, how many states of the text before each layer keeps, in training and when texts are scored (``mem_len``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"width: {self.width}; expected an even number, for distances are sines and cosines")


_GPT2 = {"vocab_size": 50257, "context": 1024}
_GPT3 = {"vocab_size": 50257, "context": 2048}
_GPT = {
    # Radford et al. 2019, table 2.
    "small": _GPT2 | {"layers": 12, "heads": 12, "width": 768},
    "medium": _GPT2 | {"layers": 24, "heads": 16, "width": 1024},
    "large": _GPT2 | {"layers": 36, "heads": 20, "width": 1280},
    "xl": _GPT2 | {"layers": 48, "heads": 25, "width": 1600},
    # Brown et al. 2020, table 2.1. Two of its rows do not add up: 24 heads of 128 in a width of 2048 (here 16 heads),
    # and a width of 5140 for 40 heads of 128 (here 5120).
    "125M": _GPT3 | {"layers": 12, "heads": 12, "width": 768},
    "350M": _GPT3 | {"layers": 24, "heads": 16, "width": 1024},
    "760M": _GPT3 | {"layers": 24, "heads": 16, "width": 1536},
    "1.3B": _GPT3 | {"layers": 24, "heads": 16, "width": 2048},
    "2.7B": _GPT3 | {"layers": 32, "heads": 32, "width": 2560},
    "6.7B": _GPT3 | {"layers": 32, "heads": 32, "width": 4096},
    "13B": _GPT3 | {"layers": 40, "heads": 40, "width": 5120},
    "175B": _GPT3 | {"layers": 96, "heads": 96, "width": 12288},
}
_BERT = {
    # Devlin et al. 2019, section 3; the vocabulary is that of the released uncased models.
    "base": {"vocab_size": 30522, "context": 512, "layers": 12, "heads": 12, "width": 768},
    "large": {"vocab_size": 30522, "context": 512, "layers": 24, "heads": 16, "width": 1024},
}
_ELECTRA = {
    # Clark et al. 2020, table 6; the vocabulary is that of BERT.
    "small": {"vocab_size": 30522, "context": 512, "layers": 12, "heads": 4, "width": 256, "embedding": 128},
    "base": {"vocab_size": 30522, "context": 512, "layers": 12, "heads": 12, "width": 768, "generator_heads": 4},
    "large": {"vocab_size": 30522, "context": 512, "layers": 24, "heads": 16, "width": 1024},
}
_XLNET = {
    # Yang et al. 2019, appendix A.4.1 (large) and the released base model; the vocabulary is that of both.
    "base": {"vocab_size": 32000, "context": 512, "layers": 12, "heads": 12, "width": 768, "memory": 384},
    "large": {"vocab_size": 32000, "context": 512, "layers": 24, "heads": 16, "width": 1024, "memory": 384},
}


@dataclass(frozen=True)
class Architecture:
    """What is known of an architecture without its model."""

    config: type[Any]
    """A section with the sizes of ``TransformerConfig``."""
    presets: dict[str, dict[str, int]]
    """The published sizes by name."""
    objectives: tuple[str, ...]
    """The objectives that can train it."""
    place: str
    """Its ``nn.Module``, as ``module:attribute``."""

    @property
    def model(self) -> "type[nn.Module]":
        """The class of its models, built from the configuration alone. Imports torch."""
        model: type[nn.Module] = resolve_name(self.place)
        return model


MODELS = {
    "gpt": Architecture(GPTConfig, _GPT, ("causal",), place="plm_core.models.gpt:GPT"),
    "bert": Architecture(BERTConfig, _BERT, ("masked",), place="plm_core.models.bert:BERT"),
    "electra": Architecture(ELECTRAConfig, _ELECTRA, ("replaced",), place="plm_core.models.electra:ELECTRA"),
    "xlnet": Architecture(XLNetConfig, _XLNET, ("causal", "permutation"), place="plm_core.models.xlnet:XLNet"),
}
"""The architectures by name: there is no other table."""


def shape(architecture: str, model: dict[str, Any], where: str) -> Any:
    """A model's configuration; ``where`` opens the message of a UserError about it.

    ``model`` may name a published size as ``preset``; what stands beside it wins.
    """
    if architecture not in MODELS:
        raise UserError(f"{where}.architecture: found {architecture!r}; expected one of {', '.join(MODELS)}")
    entry = MODELS[architecture]
    if (preset := model.get("preset")) is not None:
        if preset not in entry.presets:
            raise UserError(f"{where}.model.preset: found {preset!r}; expected one of {', '.join(entry.presets)}")
        model = {**entry.presets[preset], **{name: value for name, value in model.items() if name != "preset"}}
    return from_dict(entry.config, model, f"{where}.model")
