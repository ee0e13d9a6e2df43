"""Checkpoints of every family with random weights."""

import torch

from plm_core import checkpoint
from plm_core.configs.architectures import MODELS
from plm_core.interchange import FAMILIES

LOCAL = {"inner": 50, "global_every": 2, "window": 6, "rope_base": 170.0, "local_rope_base": 50.0}
SIZES = {
    "gpt": {"context": 17, "layers": 2, "heads": 3, "width": 21},
    "llama": {"context": 17, "layers": 2, "heads": 6, "width": 36, "kv_heads": 2, "inner": 50, "rope_base": 70.0},
    "bert": {"context": 17, "layers": 2, "heads": 3, "width": 21, "segments": 3},
    "modernbert": {"context": 17, "layers": 4, "heads": 3, "width": 30} | LOCAL,
    "t5": {"context": 17, "layers": 2, "heads": 3, "width": 21, "head_width": 6, "gated": True, "sentinels": 5},
    "xlnet": {"context": 17, "layers": 2, "heads": 3, "width": 30, "memory": 5},
}


@torch.no_grad()
def save(folder, architecture, tokenizer, objective=None, head=None, **changes):
    """Save a model whose every parameter is drawn at random."""
    entry = MODELS[architecture]
    torch.manual_seed(7)
    model = entry.model(entry.config(tokenizer.vocab_size, **(SIZES[architecture] | changes)))
    for name, parameter in model.named_parameters():
        parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.1, 0.3)
    config = checkpoint.CheckpointConfig(
        checkpoint.FORMAT,
        architecture,
        objective or FAMILIES[architecture].objective,
        vars(model.config),
        tokenizer.sha256,
        step=99,
        valid_nats=5.25,
        head=head,
        lineage=checkpoint.Lineage("7" * 64, "9" * 64),
    )
    return checkpoint.save(folder, model.eval().state_dict(), tokenizer, config)
