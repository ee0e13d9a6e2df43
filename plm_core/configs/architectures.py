"""The section ``model`` of each architecture, and the published sizes by name. Read without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from plm_core.config import Probability, UserError, from_dict, section

if TYPE_CHECKING:
    from torch import nn


@section
class ModelConfig:
    """The part of section ``model`` that all architectures share; the vocabulary comes from the tokenizer."""

    vocab_size: PositiveInt
    """V, the number of token ids."""
    context: PositiveInt
    """The largest T: how many positions are read at once. Absolute positions have an embedding each."""
    layers: PositiveInt
    """L, the number of blocks."""
    width: PositiveInt
    """D, the size of the hidden states: in a transformer, of the residual stream."""
    dropout: Probability = 0.1
    """The probability of zeroing an activation: embeddings, attention weights and both residual branches."""
    initializer_range: PositiveFloat = 0.02
    """The standard deviation of initial weights, by default the published one; narrow models learn faster with more."""
    initial_embeddings: Literal["drawn", "neighbours"] = "drawn"
    """The token embeddings before pretraining: drawn at random, as published, or from each token's neighbours in the
    training text (``plm_core.text.cooccurrence``), which a run of a few minutes has no time to learn."""


@section
class TransformerConfig(ModelConfig):
    """The part of section ``model`` that all transformers share."""

    heads: PositiveInt = field(kw_only=True)
    """H, attention heads per block; must divide ``width``."""

    def __post_init__(self) -> None:
        if self.width % self.heads and getattr(self, "head_width", None) is None:
            raise ValueError(f"heads: {self.heads} does not divide width {self.width}")


def _require_pairs(config: TransformerConfig) -> None:
    """Raise ValueError if the dimensions of a head do not form pairs, which rotary embeddings rotate."""
    if config.width // config.heads % 2:
        raise ValueError(
            f"heads: {config.heads} in width {config.width} have {config.width // config.heads} dimensions each; "
            "expected an even number, because rotary embeddings rotate pairs"
        )


def _gated(width: int) -> int:
    """The size of a gated feed-forward layer: 8/3 of the width, rounded up to a multiple of 64."""
    return -(-8 * width // (3 * 64)) * 64


@section
class GPTConfig(TransformerConfig):
    """Section ``model`` of a GPT."""

    norm: Literal["pre", "post"] = "pre"
    """Where layers are normalised: at the input of each sub-block and after the last block, as in GPT-2, or after each
    residual sum, as in the first GPT, which needs a longer warm-up and lower rates (Xiong et al. 2020)."""


@section
class LlamaConfig(TransformerConfig):
    """Section ``model`` of a LLaMA."""

    dropout: Probability = 0.0
    """The probability of zeroing an attention weight, the only dropout in transformers' implementation. The paper's
    models are trained without dropout."""
    kv_heads: PositiveInt | None = None
    """G, key-value heads per block, each shared by ``heads`` / G query heads (Ainslie et al. 2023); null for as many as
    ``heads``."""
    inner: PositiveInt | None = None
    """The size of the feed-forward layer; null for 8/3 of ``width``, so that its three matrices have as many weights as
    two of 4 times the width (section 2.2), rounded up to a multiple of 64, which is fastest on tensor cores."""
    rope_base: PositiveFloat = 10_000.0
    """The base of the rotary embedding (RoPE theta): about how much slower the last dimensions of a head rotate than
    the first (Su et al. 2021, section 3.2.2); larger for longer contexts."""
    rope_factor: PositiveFloat = 1.0
    """The factor by which the slow dimensions rotate slower still, so that a model reads further than the context it
    was first trained on (the RoPE scaling of Llama 3.1); 1 for no scaling."""
    rope_context: PositiveInt | None = None
    """The context it was first trained on; required with ``rope_factor``, null without."""
    tied: bool = True
    """Whether the output layer is the token embedding, as in small models, or has weights of its own."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases, as in Qwen 2."""
    norm_epsilon: PositiveFloat = 1e-6
    """Added to the mean square in RMSNorm: 1e-6 in the first LLaMA, 1e-5 in later ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_pairs(self)
        if (self.rope_factor != 1) != (self.rope_context is not None):
            raise ValueError(f"rope_factor: {self.rope_factor:g} with rope_context {self.rope_context}; expected both")
        # Filled in, so that a checkpoint says what its sizes are.
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "inner", self.inner or _gated(self.width))
        if self.heads % (self.kv_heads or 1):
            raise ValueError(f"kv_heads: {self.kv_heads} does not divide heads {self.heads}")


@section
class BERTConfig(TransformerConfig):
    """Section ``model`` of a BERT."""

    segments: NonNegativeInt = 2
    """S, how many segments have an embedding: 2 in BERT, 1 in RoBERTa, none in DistilBERT. With fewer than 2, texts of
    a pair are told apart by ``<sep>`` alone."""
    separators: PositiveInt = 1
    """How many ``<sep>`` stand between the texts of a pair: 2 in RoBERTa."""
    first_position: NonNegativeInt = 0
    """The number of the first position: 2 in RoBERTa, where the lower numbers belong to padding and are never read."""
    inner: PositiveInt | None = None
    """The size of the feed-forward layer; null for 4 times ``width``."""
    norm_epsilon: PositiveFloat = 1e-12
    """Added to the variance in layer normalisation: 1e-12 in BERT, 1e-5 in RoBERTa."""
    initial_attention: Literal["drawn", "neighbours"] = "drawn"
    """What heads attend to before training: anything, as published; or half of them to one neighbour each, as some
    heads of trained models do. In a run of a few minutes a masked model does not learn this by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_attention == "neighbours" and self.width // self.heads % 2:
            size = self.width // self.heads
            raise ValueError(f"initial_attention: heads of {size} ({self.width} / {self.heads}); expected an even size")
        # Filled in, so that a checkpoint says what its sizes are.
        object.__setattr__(self, "inner", self.inner or 4 * self.width)


@section
class ModernBERTConfig(TransformerConfig):
    """Section ``model`` of a ModernBERT."""

    dropout: Probability = 0.0
    """The probability of zeroing an activation: embeddings, attention weights, what attention writes, and inside the
    feed-forward layer. The published models have none."""
    inner: PositiveInt | None = None
    """The size of the gated feed-forward layer; null for 8/3 of ``width``, so that its three matrices have as many
    weights as two of 4 times the width, rounded up to a multiple of 64."""
    global_every: PositiveInt = 3
    """One layer in this many, beginning with the first, attends to the whole row; the others to a window."""
    window: PositiveInt = 128
    """The size of a window: half of the positions on either side of a position, in addition to itself."""
    rope_base: PositiveFloat = 160_000.0
    """The base of the rotary embedding (RoPE theta) in layers that attend to the whole row."""
    local_rope_base: PositiveFloat = 10_000.0
    """The RoPE base in layers that attend to a window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_pairs(self)
        # Filled in, so that a checkpoint says what its sizes are.
        object.__setattr__(self, "inner", self.inner or _gated(self.width))


@section
class ELECTRAConfig(TransformerConfig):
    """Section ``model`` of an ELECTRA. Sizes are the discriminator's unless stated otherwise; both have as many
    layers."""

    generator_heads: PositiveInt | None = None
    """The generator's heads, each as wide as the discriminator's (table 6); null for a quarter as many, at least one.
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
        return BERTConfig(self.vocab_size, self.context, self.layers, width, self.dropout, heads=heads)


@section
class XLNetConfig(TransformerConfig):
    """Section ``model`` of an XLNet, whose relative positions have no limit."""

    memory: NonNegativeInt = 0
    """M, how many states of the preceding text each layer keeps, in training and in scoring (``mem_len``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"width: {self.width}; expected an even number, because distances are sines and cosines")


@section
class EncoderDecoderConfig(TransformerConfig):
    """Section ``model`` of an encoder-decoder Transformer. Encoder and decoder have the same sizes.

    As published, these decide how initial weights are drawn; ``initializer_range`` is for the head of a task.
    """

    inner: PositiveInt | None = None
    """The size of the feed-forward layers; null for 4 times ``width``."""
    sentinels: PositiveInt = 100
    """How many tokens can stand for a span that is left out of a text. They are not tokens of any text."""
    first_sentinel: PositiveInt | None = None
    """The id of the first sentinel; those of the others decrease, as in T5. null: they follow the tokenizer's ids. A
    tokenizer published with a T5 has sentinels of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Filled in, so that a checkpoint says what its sizes are.
        object.__setattr__(self, "inner", self.inner or 4 * self.width)
        if self.first_sentinel is None:
            object.__setattr__(self, "first_sentinel", self.vocab_size + self.sentinels - 1)

    @property
    def rows(self) -> int:
        """How many ids have an embedding: those of the tokenizer, and sentinels that it does not have."""
        assert self.first_sentinel is not None
        return max(self.vocab_size, self.first_sentinel + 1)


@section
class T5Config(EncoderDecoderConfig):
    """Section ``model`` of a T5, whose relative positions have no limit."""

    head_width: PositiveInt | None = None
    """The size of a head; null for ``width`` / ``heads``, which must then be whole."""
    gated: bool = False
    """Whether the feed-forward layer is gated by a GELU, as in T5 1.1, or has one ReLU, as in the first T5."""
    tied: bool = True
    """Whether the output layer is the token embedding, as in the first T5, or has weights of its own, as in T5 1.1."""
    buckets: PositiveInt = 32
    """How many groups of distances have a bias of their own."""
    max_distance: PositiveInt = 128
    """From this distance on, all have the same bias."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "head_width", self.head_width or self.width // self.heads)


@section
class ELMoConfig(ModelConfig):
    """Section ``model`` of an ELMo, or of one LSTM language model. ``width`` is the size of both directions' states
    together."""

    dropout: Probability = 0.1
    """The probability of zeroing an input of each LSTM, or an output of the last ones."""
    initializer_range: PositiveFloat = 0.02
    """The standard deviation of a new head's weights in fine-tuning. The model's own are drawn as released."""
    initial_embeddings: Literal["drawn"] = "drawn"
    """Tokens have no embeddings of their own to begin with: theirs are computed from their characters."""
    cells: PositiveInt | None = None
    """C, the memory cells of each LSTM, which are projected to the size of its state; if both are equal, they are not.
    Null for 4 times ``width``, as released."""
    characters: PositiveInt = 16
    """E, the size of a character's embedding."""
    longest: Annotated[int, Field(ge=3)] = 50
    """The most characters (bytes) of a token, the marks of its beginning and end included; more are cut off."""
    filters: tuple[tuple[PositiveInt, PositiveInt], ...] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    """The convolutions over characters: width and number of filters of each."""
    activation: Literal["relu", "tanh"] = "relu"
    """What follows the maximum of a filter."""
    highways: NonNegativeInt = 2
    """Highway layers after the filters."""
    cell_clip: PositiveFloat | None = 3.0
    """The largest absolute value of a memory cell; null for any."""
    projection_clip: PositiveFloat | None = 3.0
    """The largest absolute value of a projected state; null for any."""
    residual: bool = True
    """Whether the input of each LSTM after the first is added to its output (``use_skip_connections``)."""
    backward: bool = True
    """Whether there is a second direction, from right to left; false for a language model (Jozefowicz et al. 2016)."""

    @property
    def one_way(self) -> int:
        """P, the size of the state of each direction."""
        return self.width // 2 if self.backward else self.width

    def __post_init__(self) -> None:
        if self.backward and self.width % 2:
            raise ValueError(f"width: {self.width}; expected an even number, half of it for each direction")
        # Filled in, so that a checkpoint says what its sizes are.
        object.__setattr__(self, "cells", self.cells or 4 * self.width)
        if (self.cells or 0) < self.one_way:
            raise ValueError(f"cells: {self.cells}; expected at least {self.one_way}, the size of a direction's state")
        widest = max((width for width, _ in self.filters), default=0)
        if not 0 < widest <= self.longest:
            raise ValueError(f"filters: the widest is {widest}; expected one at least, and none above {self.longest}")


_GPT2 = {"vocab_size": 50257, "context": 1024}
_GPT3 = {"vocab_size": 50257, "context": 2048}
_LLAMA1: dict[str, float] = {"vocab_size": 32000, "context": 2048, "tied": False}
_LLAMA3: dict[str, float] = {"vocab_size": 128256, "context": 8192, "rope_base": 500_000, "norm_epsilon": 1e-5}
_GPT: dict[str, dict[str, Any]] = {
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
    # Radford et al. 2018, section 4.1; the vocabulary is that of the released model.
    "gpt-1": {"vocab_size": 40478, "context": 512, "layers": 12, "heads": 12, "width": 768, "norm": "post"},
}
_LLAMA = {
    # Touvron et al. 2023, table 2; vocabulary, context and inner sizes are those of the released models.
    "7B": _LLAMA1 | {"layers": 32, "heads": 32, "width": 4096, "inner": 11008},
    "13B": _LLAMA1 | {"layers": 40, "heads": 40, "width": 5120, "inner": 13824},
    "33B": _LLAMA1 | {"layers": 60, "heads": 52, "width": 6656, "inner": 17920},
    "65B": _LLAMA1 | {"layers": 80, "heads": 64, "width": 8192, "inner": 22016},
    # The released Llama 3.2 before its RoPE scaling, with which it reads 131,072 positions: the context is that of the
    # first stage of training (Grattafiori et al. 2024, section 3.4).
    "3.2-1B": _LLAMA3 | {"layers": 16, "heads": 32, "width": 2048, "kv_heads": 8, "inner": 8192},
    "3.2-3B": _LLAMA3 | {"layers": 28, "heads": 24, "width": 3072, "kv_heads": 8, "inner": 8192},
}
_BILM = {"vocab_size": 793471, "context": 128, "layers": 2}
_MODERN = {"vocab_size": 50368, "context": 8192}
_BERT = {
    # Devlin et al. 2019, section 3; the vocabulary is that of the released uncased models.
    "base": {"vocab_size": 30522, "context": 512, "layers": 12, "heads": 12, "width": 768},
    "large": {"vocab_size": 30522, "context": 512, "layers": 24, "heads": 16, "width": 1024},
}
_MODERNBERT = {
    # Warner et al. 2024, section 2.1.3 and appendix, and the released models.
    "base": _MODERN | {"layers": 22, "heads": 12, "width": 768, "inner": 1152},
    "large": _MODERN | {"layers": 28, "heads": 16, "width": 1024, "inner": 2624},
}
_ELECTRA = {
    # Clark et al. 2020, table 6; the vocabulary is that of BERT.
    "small": {"vocab_size": 30522, "context": 512, "layers": 12, "heads": 4, "width": 256, "embedding": 128},
    "base": {"vocab_size": 30522, "context": 512, "layers": 12, "heads": 12, "width": 768, "generator_heads": 4},
    "large": {"vocab_size": 30522, "context": 512, "layers": 24, "heads": 16, "width": 1024},
}
_SEQUENCES = {"context": 512, "vocab_size": 37_000}
_TRANSFORMER = {
    # Vaswani et al. 2017, table 3; the vocabulary is that of English-German (section 5.1).
    "base": _SEQUENCES | {"layers": 6, "heads": 8, "width": 512, "dropout": 0.1},
    "big": _SEQUENCES | {"layers": 6, "heads": 16, "width": 1024, "dropout": 0.3},
}
_T5_1 = {"vocab_size": 32028, "context": 512, "head_width": 64}
_T5_11 = _T5_1 | {"gated": True, "tied": False}
_T5 = {
    # Raffel et al. 2020, section 3.7, and the released models: 32,128 ids with the sentinels.
    "small": _T5_1 | {"layers": 6, "heads": 8, "width": 512, "inner": 2048},
    "base": _T5_1 | {"layers": 12, "heads": 12, "width": 768, "inner": 3072},
    "large": _T5_1 | {"layers": 24, "heads": 16, "width": 1024, "inner": 4096},
    "1.1-small": _T5_11 | {"layers": 8, "heads": 6, "width": 512, "inner": 1024},
    "1.1-base": _T5_11 | {"layers": 12, "heads": 12, "width": 768, "inner": 2048},
    "1.1-large": _T5_11 | {"layers": 24, "heads": 16, "width": 1024, "inner": 2816},
}
_XLNET = {
    # Yang et al. 2019, appendix A.4.1 (large) and the released base model; the vocabulary is that of both.
    "base": {"vocab_size": 32000, "context": 512, "layers": 12, "heads": 12, "width": 768, "memory": 384},
    "large": {"vocab_size": 32000, "context": 512, "layers": 24, "heads": 16, "width": 1024, "memory": 384},
}
_ELMO = {
    # The released models of allenai/bilm-tf, by the names of their files (2x4096_512_2048cnn_2xhighway and so on); the
    # vocabulary is that of the 1 Billion Word Benchmark. They read rows of 20 tokens, each continuing the one before.
    "small": _BILM | {"width": 256, "highways": 1},
    "medium": _BILM | {"width": 512, "highways": 1},
    "original": _BILM | {"width": 1024},
}


@dataclass(frozen=True)
class Architecture:
    """What is known about an architecture without importing its model."""

    config: type[Any]
    """A section with the sizes of ``ModelConfig``."""
    presets: Mapping[str, Mapping[str, Any]]
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
    "gpt": Architecture(GPTConfig, _GPT, ("causal", "hybrid"), place="plm_core.models.gpt:GPT"),
    "llama": Architecture(LlamaConfig, _LLAMA, ("causal", "hybrid"), place="plm_core.models.llama:Llama"),
    "bert": Architecture(BERTConfig, _BERT, ("masked",), place="plm_core.models.bert:BERT"),
    "modernbert": Architecture(
        ModernBERTConfig, _MODERNBERT, ("masked",), place="plm_core.models.modernbert:ModernBERT"
    ),
    "electra": Architecture(ELECTRAConfig, _ELECTRA, ("replaced",), place="plm_core.models.electra:ELECTRA"),
    "xlnet": Architecture(XLNetConfig, _XLNET, ("causal", "permutation"), place="plm_core.models.xlnet:XLNet"),
    "transformer": Architecture(
        EncoderDecoderConfig, _TRANSFORMER, ("span_corruption",), place="plm_core.models.transformer:Transformer"
    ),
    "t5": Architecture(T5Config, _T5, ("span_corruption",), place="plm_core.models.t5:T5"),
    "elmo": Architecture(ELMoConfig, _ELMO, ("causal", "bidirectional"), place="plm_core.models.elmo:ELMo"),
}
"""The architectures by name; the only such table."""


def shape(architecture: str, model: dict[str, Any], where: str) -> Any:
    """A model's configuration; ``where`` opens the message of a UserError about it.

    ``model`` may name a published size as ``preset``; other keys given with it take precedence.
    """
    if architecture not in MODELS:
        raise UserError(f"{where}.architecture: found {architecture!r}; expected one of {', '.join(MODELS)}")
    entry = MODELS[architecture]
    if (preset := model.get("preset")) is not None:
        if not isinstance(preset, str) or preset not in entry.presets:
            raise UserError(f"{where}.model.preset: found {preset!r}; expected one of {', '.join(entry.presets)}")
        model = {**entry.presets[preset], **{name: value for name, value in model.items() if name != "preset"}}
    return from_dict(entry.config, model, f"{where}.model")


_NOT_COMPUTED = {
    "vocab_size", "dropout", "initializer_range", "initial_embeddings", "initial_attention", "memory", "sentinels",
    "first_sentinel",
}  # fmt: skip
"""Fields that do not affect how weights are used: how they are initialised and trained, how much of the preceding text
is kept, and the vocabulary, which the tokenizer decides."""


def differing_sizes(ours: Any, theirs: Any) -> list[str]:
    """The names of the sizes that make two models of one architecture compute differently with the same weights.

    ``context`` is one of them only if positions have embeddings. If it can grow and does, ``rope_base`` may change with
    it, as in section 2.2.2 of ModernBERT's paper.
    """
    free = set(_NOT_COMPUTED)
    if isinstance(ours, LlamaConfig | ModernBERTConfig | XLNetConfig | EncoderDecoderConfig | ELMoConfig):
        free |= {"context", "rope_base"} if ours.context > theirs.context else {"context"}
    return [name for name, value in vars(ours).items() if name not in free and value != vars(theirs)[name]]
