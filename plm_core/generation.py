"""Text from a causal model, token by token. Used by evaluation samples, the `generate` command and serving.

Sources: temperature sampling (Ackley et al. 1985), top-k (Fan et al. 2018). Shapes: T positions, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from plm_core.text.special import EOS, PIECES
from plm_core.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is drawn."""

    max_new_tokens: int = 64
    """The longest continuation, in tokens; it ends earlier at the end-of-document token."""
    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 50
    """Draw among the k most likely tokens; 0 for all."""
    seed: int = 0
    """Of the draws; equal seeds give equal texts."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed: {self.seed}; expected a whole number from 0 to 2**63 - 1")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: {self.max_new_tokens}; expected at least 1")
        if self.temperature < 0 or self.top_k < 0:
            raise ValueError(f"temperature: {self.temperature}, top_k: {self.top_k}; expected at least 0")


@torch.no_grad()
def continue_ids(model: Any, prompt: list[int], config: SamplingConfig) -> Iterator[int]:
    """Yield the ids that follow EOS and ``prompt``; the model reads the last ``context`` tokens. Special tokens are
    never drawn but for EOS, which ends the text and is not yielded."""
    device = next(model.parameters()).device
    draws = torch.Generator().manual_seed(config.seed)
    ids = [EOS, *prompt]
    model.eval()
    for _ in range(config.max_new_tokens):
        window = torch.tensor([ids[-model.config.context :]], device=device)
        logits = model.logits(model(window)[0, -1]).float().cpu()
        logits[[i for i in range(len(PIECES)) if i != EOS]] = float("-inf")
        token = _draw(logits, config, draws)
        if token == EOS:
            return
        ids.append(token)
        yield token


def generate(model: Any, tokenizer: Tokenizer, prompt: str, config: SamplingConfig) -> str:
    """The continuation of a prompt, as text."""
    start = tokenizer.encode(prompt)
    return tokenizer.decode([*start, *continue_ids(model, start, config)])[len(tokenizer.decode(start)) :]


def stream(model: Any, tokenizer: Tokenizer, prompt: str, config: SamplingConfig) -> Iterator[str]:
    """The continuation piece by piece; a character spelled in several byte tokens comes when it is whole."""
    ids = tokenizer.encode(prompt)
    shown = tokenizer.decode(ids)
    for token in continue_ids(model, ids.copy(), config):
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    yield tokenizer.decode(ids)[len(shown) :]


def _draw(logits: torch.Tensor, config: SamplingConfig, draws: torch.Generator) -> int:
    if config.temperature == 0:
        return int(logits.argmax())
    if 0 < config.top_k < len(logits):
        logits[logits < logits.topk(config.top_k).values[-1]] = float("-inf")
    probabilities = torch.softmax(logits / config.temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=draws))
