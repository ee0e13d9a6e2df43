"""The mapping of a model to Hugging Face transformers: a table of sizes and one of weights, used in both directions.

Shapes: D width, H heads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plm_core.config import UserError, join_names


class WeightLayout(NamedTuple):
    """How one of our tensors maps to theirs. Only the order of elements changes, so gradients map in the same way."""

    ours: Callable[[list[Tensor]], Tensor]
    """From their tensors to ours."""
    theirs: Callable[[Tensor, int], Sequence[Tensor]]
    """From our tensor and H to their tensors."""


SAME = WeightLayout(lambda theirs: theirs[0], lambda ours, heads: [ours])
TRANSPOSED = WeightLayout(lambda theirs: theirs[0].T, lambda ours, heads: [ours.T])


@dataclass(frozen=True)
class Weight:
    """One line of the table of weights."""

    ours: str
    """Our name; ``{}`` stands for the number of the block."""
    theirs: tuple[str, ...]
    """Their names."""
    layout: WeightLayout = SAME
    first: int = 0
    """The first block that has it."""
    when: Callable[[Mapping[str, Any]], bool] = lambda model: True
    """Whether a model with our configuration has it."""
    decoder: bool = False
    """Whether its blocks are those of a decoder that is counted after an encoder here, and by itself there."""


def weight_and_bias(ours: str, theirs: str, layout: WeightLayout = SAME) -> tuple[Weight, Weight]:
    """The lines of a layer's weight, which maps to theirs by ``layout``, and of its bias."""
    return Weight(f"{ours}.weight", (f"{theirs}.weight",), layout), Weight(f"{ours}.bias", (f"{theirs}.bias",))


@dataclass(frozen=True)
class Size:
    """One line of the table of sizes."""

    ours: str
    """The field of our configuration."""
    theirs: tuple[str, ...]
    """Their keys, with a dot for one in a section: all are written, the first that is present is read."""
    default: Any = ...
    """The value if their keys are absent, as in their class; ``...`` if one is required."""
    always: bool = True
    """Whether it is written even if it has its default."""
    less: int = 0
    """How much smaller our value is than theirs."""
    words: tuple[str, ...] = ()
    """How they write false and true, if it is with words."""


@dataclass(frozen=True)
class Family:
    """A model type of transformers whose computation is that of one of our architectures."""

    architecture: str
    """The name in ``MODELS``."""
    model_type: str
    """Their name for it."""
    model_class: str
    """Their class that computes everything that ours does."""
    auto_class: str
    """The automatic class that loads it."""
    objective: str
    """The name in ``OBJECTIVES`` of the objective that their class is for."""
    sizes: tuple[Size, ...]
    """The table of sizes."""
    fixed: Mapping[str, tuple[Any, ...]]
    """What their configuration must hold for the same computation: the first is written, and a key may be absent."""
    marks: Mapping[str, int]
    """The special tokens that their configuration names; written, not read."""
    follows: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """What follows from our configuration, by their keys: written, and checked when read; a key may be absent."""
    weights: tuple[Weight, ...]
    """The table of weights: all of theirs except the tied ones, and all of ours."""
    base: str
    """The prefix of the encoder's weights; a folder may omit it. Weights with another prefix are a head."""
    tied: Mapping[str, str]
    """Their weights that are tied to others, unless the table of weights has them: equal if a folder holds both."""
    frame: tuple[tuple[str, int], ...]
    """The row of one text A, with the special tokens around it: pieces and their segments."""
    frame_of_two: tuple[tuple[str, int], ...]
    """The row of two texts, A and B."""
    padding_side: str
    """The default side of padding."""
    use: str
    """How inputs are framed, for people, as Markdown."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The parts of our model that a folder may lack as a whole, for people; the prefixes of their weights' names."""
    sentinel: str = ""
    """The piece of the first sentinel, if there are sentinels; the id of each further one is one lower."""
    ignored: tuple[str, ...] = ()
    """The suffixes of tensors that are not weights."""
    unmarked: bool = False
    """Whether published models have no token that ends a document: it is new to them."""

    @property
    def segmented(self) -> bool:
        """Whether the model reads segments."""
        return any(segment for _, segment in self.frame_of_two)

    def lines(self, model: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], WeightLayout]]:
        """The table of weights for our configuration, with the numbers of the blocks filled in."""
        for weight in self.weights:
            if weight.when(model):
                before = model["layers"] if weight.decoder else 0
                for number in range(weight.first, model["layers"]) if "{}" in weight.ours else (0,):
                    theirs = tuple(name.format(number) for name in weight.theirs)
                    yield weight.ours.format(before + number), theirs, weight.layout

    def to_theirs(self, tensors: Mapping[str, Tensor], model: Mapping[str, Any]) -> dict[str, Tensor]:
        """Our weights, or their gradients, under their names."""
        converted: dict[str, Tensor] = {}
        for ours, theirs, layout in self.lines(model):
            parts = layout.theirs(tensors[ours], model["heads"])
            converted |= zip(theirs, (part.contiguous() for part in parts), strict=True)
        return converted

    def in_full(self, names: Iterable[str]) -> dict[str, str]:
        """Their names as a folder has them, by the names with the prefix that it may omit."""
        table = (*(name for weight in self.weights for name in weight.theirs), *self.tied)
        prefixes = {name.split(".", 1)[0] for name in table}
        return {name if name.split(".", 1)[0] in prefixes else self.base + name: name for name in names}

    def to_ours(self, tensors: Mapping[str, Tensor], model: Mapping[str, Any], where: str) -> dict[str, Tensor]:
        """Their weights, or their gradients, under our names; without those of ``parts`` that are lacking.

        Raises:
            UserError: a weight is missing, one has no place in our model, or two tied ones differ.
        """
        names = self.in_full(name for name in tensors if not name.endswith(self.ignored))
        given = {full: tensors[name] for full, name in names.items()}

        # The table, line by line; then what it does not explain.
        converted = {}
        missing: dict[str, list[str]] = {}
        for ours, theirs, layout in self.lines(model):
            if absent := [name for name in theirs if name not in given]:
                missing[ours] = absent
                continue
            try:
                converted[ours] = layout.ours([given[name] for name in theirs]).contiguous()
            except (RuntimeError, IndexError) as error:
                shapes = ", ".join(f"{name} {tuple(given[name].shape)}" for name in theirs)
                raise UserError(f"{where}: {shapes}: not the shapes of a {self.model_class}") from error
        used = {name for _, theirs, _ in self.lines(model) for name in theirs}
        for name, other in self.tied.items():
            if name not in used and name in given and other in given and not torch.equal(given[name], given[other]):
                raise UserError(f"{where}: {name} differs from {other}; expected them tied, as in {self.model_class}")
        for prefixes in self.parts.values():
            if not any(name.startswith(prefixes) for name in converted):
                missing = {name: absent for name, absent in missing.items() if not name.startswith(prefixes)}
        if missing:
            lacking = join_names(sorted(name for absent in missing.values() for name in absent), 7)
            raise UserError(f"{where}: lacks {lacking}; expected the weights of a {self.model_class}")
        if unknown := given.keys() - used - self.tied.keys():
            extra = join_names(sorted(names[name] for name in unknown), 7)
            layers = model["layers"]
            raise UserError(f"{where}: contains {extra}, which a {self.model_class} with {layers} layers does not have")
        return converted

    def lacking(self, converted: Collection[str]) -> list[str]:
        """The parts of our model of which there is no weight among our names."""
        return [part for part, names in self.parts.items() if not any(name.startswith(names) for name in converted)]

    def their_config(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Their configuration of a model with our configuration ``model``."""
        written = (size for size in self.sizes if size.always or model[size.ours] != size.default)
        sizes = {
            name: size.words[model[size.ours]]
            if size.words
            else model[size.ours] + size.less
            if size.less
            else model[size.ours]
            for size in written
            for name in size.theirs
        }
        fixed = {name: accepted[0] for name, accepted in self.fixed.items()}
        names = {"model_type": self.model_type, "architectures": [self.model_class]}
        nested: dict[str, Any] = {}
        for key, value in (names | dict(self.follows(model)) | sizes | fixed | dict(self.marks)).items():
            # Each value goes into the section that its key names before the dot.
            *sections, last = key.split(".")
            place = nested
            for name in sections:
                place = place.setdefault(name, {})
            place[last] = value
        return nested

    def our_config(self, theirs: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Our configuration of a model with their configuration ``theirs``.

        Raises:
            UserError: a size is missing, or the configuration requires a computation that is not ours.
        """
        for name, accepted in self.fixed.items():
            if (given := _value(theirs, name, accepted[0])) not in accepted:
                raise UserError(
                    f"{where}.{name}: found {given!r}; expected {' or '.join(repr(a) for a in accepted)}: "
                    f"{self.architecture} supports nothing else"
                )
        model: dict[str, Any] = {}
        for size in self.sizes:
            values = {name: value for name in size.theirs if (value := _value(theirs, name)) is not None}
            name, value = next(iter(values.items()), (next(iter(size.theirs), ""), size.default))
            if value is ...:
                raise UserError(f"{where}.{name}: missing; expected the model's {size.ours}")
            if value in size.words:
                value = bool(size.words.index(value))
            kinds = (bool,) if isinstance(size.default, bool) else (int, float)
            if value is not size.default and type(value) not in kinds:
                expected = " or ".join(size.words) or ("true or false" if bool in kinds else "a number")
                raise UserError(f"{where}.{name}: found {value!r}; expected {expected}")
            model[size.ours] = value - size.less if size.less else value
        for name, expected in self.follows(model).items():
            if (given := _value(theirs, name)) not in (None, expected):
                raise UserError(
                    f"{where}.{name}: found {given!r}; expected {expected!r}, which follows from the other sizes"
                )
        return model


def _value(theirs: Mapping[str, Any], key: str, absent: Any = None) -> Any:
    """The value of a key, in a section if it has a dot; ``absent`` if there is none."""
    *sections, last = key.split(".")
    for name in sections:
        inside = theirs.get(name)
        theirs = inside if isinstance(inside, Mapping) else {}
    return theirs.get(last, absent)
