"""Text from a model, token by token.

``decoding`` gets the next token's logits from a model; here they become probabilities, draws and texts. Sources:
temperature (Ackley, Hinton, Sejnowski 1985), top-k (Fan, Lewis, Dauphin 2018), top-p (Holtzman, Buys, Du, Forbes, Choi
2020, section 3.1), repetition penalty (Keskar, McCann, Varshney, Xiong, Socher 2019, section 4.1).

Shapes: B rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plm_core.checkpoint import Loaded
from plm_core.generation.decoding import Decoding
from plm_core.shared.sampling import SamplingConfig
from plm_core.text.special import EOS, PIECES

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
    sources = [torch.Generator().manual_seed(config.seed + row) for row in range(len(prompts))]
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
        shares = distribution(logits, seen, config)
        # Rows that have ended go on unseen, so that the batch keeps its shape.
        for row, source in enumerate(sources):
            token = int(torch.multinomial(shares[row], 1, generator=source))
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
