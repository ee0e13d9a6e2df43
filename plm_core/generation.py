"""Text from a model, token by token: the next token's logits become probabilities, draws and texts.

A model sees a window of a text: at first as much of the prompt's end as fits. When the text outgrows it, the window's
start jumps so that half of it remains, and the cache is rebuilt. The tokens are the same as if the whole window were
read every time; with the cache a new token costs one row.

Sources: temperature (Ackley, Hinton, Sejnowski 1985), top-k (Fan, Lewis, Dauphin 2018), top-p (Holtzman, Buys, Du,
Forbes, Choi 2020, section 3.1), repetition penalty (Keskar, McCann, Varshney, Xiong, Socher 2019, section 4.1).

Shapes: B rows, T positions, P positions read before, H heads of keys, D width, S the size of a head, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.checkpoint import Loaded
from plm_core.config import UserError
from plm_core.models.blocks import Decoder
from plm_core.models.kv_cache import KVCache
from plm_core.models.xlnet import left_to_right
from plm_core.objectives import OBJECTIVES
from plm_core.shared.options import SamplingConfig
from plm_core.text.tokenizers import EOS, MASK, PAD, PIECES

Reader = Callable[[Any, Tensor, Tensor | None, Any], tuple[Tensor, Any]]
"""``(model, ids, attention_mask, state)`` to the logits ``[B, V]`` of the token after ``ids`` [B, T], and a state to
continue from. ``attention_mask`` [B, T] is false for padding (None: no padding); ``state`` is what the previous call
returned, None at first."""


def causal(model: Any, ids: Tensor, attention_mask: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """The next token of GPT, LLaMA and Transformer-XL: the last hidden state predicts it."""
    if isinstance(model, Decoder):
        state = state or KVCache(model)
        return model.logits(state.read(ids, attention_mask)[:, -1]), state
    for piece in _pieces(ids, attention_mask, model.config.context):
        hidden, state = model.read_with_memory(*piece, state)
    return model.logits(hidden[:, -1]), state


def permutation(model: Any, ids: Tensor, attention_mask: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """The next token of XLNet: the query stream at the next position predicts it (Yang et al. 2019, section 2.3).

    That position holds MASK, comes last in the order, and so is never seen; it does not enter the memory.
    """
    state = model.empty_memory(len(ids), 0) if state is None else state
    *earlier, (part, kept) = _pieces(ids, attention_mask, model.config.context - 1)
    for piece in earlier:
        _, state = model.read_with_memory(*piece, state)
    kept = torch.ones_like(part, dtype=torch.bool) if kept is None else kept
    order = left_to_right(F.pad(kept, (0, 1), value=True))
    queries = torch.full_like(part[:, :1], part.shape[1])
    hidden = model(F.pad(part, (0, 1), value=MASK), order, memory=state, queries=queries)
    return model.logits(hidden.query[:, 0]), state.extended(hidden.states[:, :, :-1], kept)


class Decoding:
    """A model that reads growing texts."""

    def __init__(self, model: Any, objective: str) -> None:
        """Raises UserError if models of this objective cannot continue texts."""
        if (decoder := OBJECTIVES[objective].decoder) is None:
            able = ", ".join(name for name, other in OBJECTIVES.items() if other.decoder)
            raise UserError(
                f"objective: found {objective!r}; expected one of {able}. A {objective} model cannot continue texts "
                "(one that fills blanks does so in the report's samples): choose another with --model"
            )
        self.model = model
        self.read: Reader = resolve_name(decoder)
        # A model with a memory sees further back than it reads at once.
        self.window = model.config.context + getattr(model.config, "memory", 0)
        self.device = next(model.parameters()).device
        self.starts: list[int] = []
        self.state: Any = None
        """What has been read; None: the whole window is read again."""

    def logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """The logits ``[B, V]`` of the token after each text; a text is that of the previous call plus one token."""
        # Where the windows start; if none has jumped, only the new tokens are read.
        before = self.starts or [max(0, len(text) - self.window) for text in texts]
        half = (self.window + 1) // 2
        self.starts = [
            start if len(text) - start <= self.window else len(text) - half
            for start, text in zip(before, texts, strict=True)
        ]
        if self.state is not None and self.starts == before:
            ids = torch.tensor([text[-1:] for text in texts], device=self.device)
            attention_mask = None
        else:
            ids, attention_mask = left_padded(
                [text[start:] for text, start in zip(texts, self.starts, strict=True)], self.device
            )
            self.state = None
        logits, self.state = self.read(self.model, ids, attention_mask, self.state)
        return logits


def left_padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Right-aligned ids ``[B, T]`` and ``attention_mask`` [B, T], false for padding; None if there is no padding."""
    longest = max(len(text) for text in texts)
    ids = torch.tensor([[PAD] * (longest - len(text)) + list(text) for text in texts], device=device)
    if all(len(text) == longest for text in texts):
        return ids, None
    missing = torch.tensor([longest - len(text) for text in texts], device=device)
    return ids, torch.arange(longest, device=device) >= missing[:, None]


def _pieces(ids: Tensor, attention_mask: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Ids and mask in pieces of at most ``size`` positions, from left to right."""
    for start in range(0, ids.shape[1], size):
        yield ids[:, start : start + size], None if attention_mask is None else attention_mask[:, start : start + size]


__all__ = ["SamplingConfig", "continue_ids", "distribution", "generate", "generate_batch", "stream"]


@torch.no_grad()
def continue_ids(
    model: Any, objective: str, prompts: Sequence[Sequence[int]], config: SamplingConfig
) -> Iterator[list[int | None]]:
    """Yield the next id of every row, step by step, after EOS and the row's prompt; None for a row that has ended.

    Row i draws with the seed ``config.seed + i``, independently of other rows. Special tokens are never drawn, except
    EOS, which ends a row and is not yielded.

    Raises:
        UserError: a model of this objective cannot continue texts.
    """
    if not prompts:
        return
    reading = Decoding(model, objective)
    generators = [torch.Generator().manual_seed(config.seed + row) for row in range(len(prompts))]
    texts = [[EOS, *prompt] for prompt in prompts]
    ended = [False] * len(prompts)
    never = [token for token in range(len(PIECES)) if token != EOS or not config.until_end]
    seen = torch.zeros(len(prompts), model.config.vocab_size, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        seen[row, list(prompt)] = True
    model.eval()
    for _ in range(config.max_new_tokens):
        # In float64 on the CPU: the same draws on every machine, and sufficiently exact sums of probabilities.
        logits = reading.logits(texts).double().cpu()
        logits[:, never] = float("-inf")
        probabilities = distribution(logits, seen, config)
        # Rows that have ended are still drawn, but not shown, so that the batch keeps its shape.
        for row, generator in enumerate(generators):
            token = int(torch.multinomial(probabilities[row], 1, generator=generator))
            texts[row].append(token)
            seen[row, token] = True
            ended[row] |= token == EOS
        if all(ended):
            return
        yield [None if end else text[-1] for end, text in zip(ended, texts, strict=True)]


def distribution(logits: Tensor, seen: Tensor, config: SamplingConfig) -> Tensor:
    """Logits ``[B, V]`` to the probabilities ``[B, V]`` by which the next token is drawn.

    ``seen`` [B, V] is true for the tokens in the prompt or the text. The order is: penalty, temperature, top-k, top-p.
    """
    # Keskar et al. divide by the penalty; that would raise a negative logit, so it is multiplied.
    penalty = config.repetition_penalty
    logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if config.temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    # The largest is shifted to 0 first; otherwise a low temperature would make it infinite.
    probabilities = torch.softmax((logits - logits.amax(-1, keepdim=True)) / config.temperature, dim=-1)
    if config.top_k:
        values, ids = probabilities.topk(min(config.top_k, probabilities.shape[-1]))
        probabilities = _only(probabilities, ids, values)
    if config.top_p < 1:
        # The fewest tokens that together reach it: those before which the sum does not reach it yet.
        values, ids = probabilities.sort(descending=True, stable=True)
        before = F.pad(values.cumsum(-1)[:, :-1], (1, 0))
        probabilities = _only(probabilities, ids, values.masked_fill(before >= config.top_p, 0.0))
    return probabilities


def _only(probabilities: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """The probabilities of the tokens ``ids``, renormalised; others are zero."""
    kept = torch.zeros_like(probabilities).scatter(-1, ids, values)
    return kept / kept.sum(-1, keepdim=True)


def generate(loaded: Loaded, prompt: str, config: SamplingConfig) -> str:
    """The continuation of a prompt, as text. Raises as ``continue_ids``, like all below."""
    return generate_batch(loaded, [prompt], config)[0]


def generate_batch(loaded: Loaded, prompts: Sequence[str], config: SamplingConfig) -> list[str]:
    """The continuation of each prompt, in one batch; prompt i draws with the seed ``config.seed + i``."""
    starts = [loaded.tokenizer.encode(prompt) for prompt in prompts]
    texts = [start.copy() for start in starts]
    for tokens in continue_ids(loaded.model, loaded.config.objective, starts, config):
        for text, token in zip(texts, tokens, strict=True):
            if token is not None:
                text.append(token)
    decode = loaded.tokenizer.decode
    return [decode(text)[len(decode(start)) :] for start, text in zip(starts, texts, strict=True)]


def stream(loaded: Loaded, prompt: str, config: SamplingConfig) -> Iterator[str]:
    """``generate`` piece by piece; a character of several byte tokens is yielded once it is complete."""
    decode = loaded.tokenizer.decode
    ids: list[int] = loaded.tokenizer.encode(prompt)
    shown = decode(ids)
    for tokens in continue_ids(loaded.model, loaded.config.objective, [ids.copy()], config):
        ids += [token for token in tokens if token is not None]
        text = decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    yield decode(ids)[len(shown) :]
