"""A pretrained model that learns to answer with a text, such as a translation; no weights are added.

An encoder-decoder reads the source and writes the text (Raffel et al. 2020, section 2.4); a decoder reads a prompt,
which the text follows (after the delimiter of Radford et al. 2018, section 3.3). The loss is that of the text alone.

Shapes: B rows, K beams, T positions of the source, N of the text, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plm_core.benchmarks.task import KINDS
from plm_core.config import UserError
from plm_core.evaluation.likelihood.document_scores import token_nats
from plm_core.finetuning.beam_search import Advance, beam_search
from plm_core.finetuning.finetune_config import TextRecipe
from plm_core.finetuning.input_formats import Part
from plm_core.finetuning.task_heads import NO_TOKEN, ExampleBatch, TaskHead
from plm_core.models.blocks import Decoder, rows_at
from plm_core.models.kv_cache import KVCache
from plm_core.models.transformer import DecoderCache, Transformer
from plm_core.objectives.objective import IGNORED, output_nll
from plm_core.objectives.span_corruption import shifted
from plm_core.text.tokenizers import BOS, EOS, PAD, SEP


class Writer(ABC):
    """How models of an objective write a text as an answer."""

    source: tuple[Part, ...]
    """How the source is written."""
    model: type[nn.Module]
    """The models that can."""

    @abstractmethod
    def room(self, context: int, text: int) -> tuple[int, int]:
        """How many tokens fit: of a source with its special tokens, beside a text of ``text`` tokens; and of a text."""

    @abstractmethod
    def states(self, model: Any, batch: ExampleBatch) -> Tensor:
        """The states ``[B, N, D]`` that predict the tokens of the texts, each of which has seen those before it."""

    @abstractmethod
    def begin(self, model: Any, batch: ExampleBatch, beams: int) -> tuple[Tensor, Advance]:
        """The logits ``[B K, V]`` of the first token, K rows for each source, and how to go on from there."""


class FromSource(Writer):
    """Encoder-decoders: source and text each fill a context."""

    source = (("a", 0), (EOS, 0))
    model = Transformer

    def room(self, context: int, text: int) -> tuple[int, int]:
        return context, context

    def states(self, model: Any, batch: ExampleBatch) -> Tensor:
        read = _read(batch)
        return model.decode(shifted(batch.targets), model.encode(batch.inputs[:, 0], attention_mask=read), read)

    def begin(self, model: Any, batch: ExampleBatch, beams: int) -> tuple[Tensor, Advance]:
        read = _read(batch)
        states = model.encode(batch.inputs[:, 0], attention_mask=read)
        cache = DecoderCache(model, states.repeat_interleave(beams, dim=0), read.repeat_interleave(beams, dim=0))

        def follow(tokens: Tensor) -> Tensor:
            return model.logits(model.decode(tokens[:, None], None, cache=cache)[:, -1])

        def advance(rows: Tensor, tokens: Tensor) -> Tensor:
            cache.reorder(rows)
            return follow(tokens)

        return follow(torch.full((len(states) * beams,), PAD, device=states.device)), advance


class AfterPrompt(Writer):
    """Decoders: a text follows its source in one context, of which it may take half."""

    source = ((BOS, 0), ("a", 0), (SEP, 0))
    model = Decoder

    def room(self, context: int, text: int) -> tuple[int, int]:
        # A source is cut alike whether its text is given, and in most cases short, or still to be written.
        return context - max(text, context // 4), context // 2

    def states(self, model: Any, batch: ExampleBatch) -> Tensor:
        """Each text right after its source, so that padding comes last, where nothing attends to it."""
        ids = batch.inputs[:, 0]
        lengths = batch.lengths
        T, N = ids.shape[1], batch.targets.shape[1]
        places = torch.arange(T + N - 1, device=ids.device) - lengths
        both = torch.cat((ids, batch.targets[:, :-1].clamp(min=PAD)), dim=1)
        order = torch.where(places < 0, places + lengths, (T + places).clamp(max=T + N - 2))
        hidden = model.read(both.gather(1, order))
        return rows_at(hidden, lengths - 1 + torch.arange(N, device=ids.device))

    def begin(self, model: Any, batch: ExampleBatch, beams: int) -> tuple[Tensor, Advance]:
        # Padding comes first, so that all sources end where the texts begin.
        ids = batch.inputs[:, 0]
        lengths = batch.lengths
        B, T = ids.shape
        places = torch.arange(T, device=ids.device)
        cache = KVCache(model)
        hidden = cache.read(ids.gather(1, (places + lengths) % T), places >= T - lengths)
        first = model.logits(hidden[:, -1]).repeat_interleave(beams, dim=0)
        cache.reorder(torch.arange(B, device=ids.device).repeat_interleave(beams))

        def advance(rows: Tensor, tokens: Tensor) -> Tensor:
            cache.reorder(rows)
            return model.logits(cache.read(tokens[:, None])[:, -1])

        return first, advance


FROM_SOURCE, AFTER_PROMPT = FromSource(), AfterPrompt()


def _read(batch: ExampleBatch) -> Tensor:
    return torch.arange(batch.inputs.shape[2], device=batch.inputs.device) < batch.lengths


class TextModel(nn.Module):
    """A model that answers with texts, in place of a ``Classifier``."""

    def __init__(
        self, backbone: Any, writer: Writer, kind: str, recipe: TextRecipe, most: int, vocab_size: int
    ) -> None:
        """``most`` is the largest number of tokens that it writes, ``vocab_size`` that of its tokenizer.

        Raises:
            UserError: the model cannot write texts, or the vocabulary is smaller than the number of beams.
        """
        super().__init__()
        self.backbone: Any
        if not isinstance(backbone, writer.model):
            raise UserError(
                f"finetune.tasks: a {kind} asks for a text, which this model cannot write; expected a decoder without "
                "memory, or an encoder-decoder"
            )
        self.backbone = backbone
        self.writer = writer
        self.recipe = recipe
        self.most = most
        self.vocab_size = vocab_size
        self.kind: TaskHead = resolve_name(KINDS[kind].head)
        self.head = nn.Sequential()

    def loss(self, batch: ExampleBatch) -> Tensor:
        """-sum log p(token), in nats, smoothed in training (Szegedy et al. 2016, section 7)."""
        output = self.backbone.output(self.writer.states(self.backbone, batch))
        if not (self.training and self.recipe.label_smoothing):
            return output_nll(output, batch.targets)
        logits = output.logits()
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
        smoothing = self.recipe.label_smoothing
        targets = batch.targets.flatten()
        return F.cross_entropy(exact, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)

    def forward(self, batch: ExampleBatch, answers: bool = True) -> Tensor:
        """``[B, 2 + M]``: -log p of the right text, -log p of the one that is written, and its M tokens, filled up with
        ``NO_TOKEN``; without ``answers`` only the first."""
        right = token_nats(self.backbone, self.writer.states(self.backbone, batch), batch.targets).sum(1)
        if not answers:
            return right[:, None]
        beams = self.recipe.beams
        first, advance = self.writer.begin(self.backbone, batch, beams)
        most = min(self.most, self._left(batch))
        texts = beam_search(first, advance, beams, self.recipe.length_penalty, most, self.vocab_size)
        longest = max(len(text.ids) for text in texts)
        rows = [[text.nats, *text.ids, *[NO_TOKEN] * (longest - len(text.ids))] for text in texts]
        return torch.cat((right[:, None], torch.tensor(rows, dtype=right.dtype, device=right.device)), dim=1)

    def _left(self, batch: ExampleBatch) -> int:
        """The tokens that the context has room for."""
        taken = batch.inputs.shape[2] if isinstance(self.writer, AfterPrompt) else 0
        return max(1, self.backbone.config.context - taken)
