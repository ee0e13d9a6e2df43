"""A model that says what it is told."""

from types import SimpleNamespace

import torch


class Scripted(torch.nn.Module):
    """Says given tokens to each row, one after the other, with logits that are far above the rest."""

    def __init__(self, *scripts, vocab_size=307):
        super().__init__()
        self.config = SimpleNamespace(context=1000, vocab_size=vocab_size)
        self.device_of = torch.nn.Parameter(torch.zeros(1))
        self.scripts, self.seen = [list(script) for script in scripts], []

    def read_with_memory(self, ids, attention_mask=None, memory=None):
        self.seen.append(ids.tolist())
        return torch.zeros(*ids.shape, 1), ids

    def logits(self, hidden):
        logits = torch.zeros(len(self.scripts), self.config.vocab_size)
        for row, script in enumerate(self.scripts):
            logits[row, script[min(len(self.seen), len(script)) - 1]] = 99.0
        return logits
