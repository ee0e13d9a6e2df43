"""Which attention each paper asks torch for: on a GPU that decides the kernel (docs/how-to/gpus.md has the table)."""

import re
from pathlib import Path

import pytest
import torch
from papers import PAPERS, make
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

KINDS = {
    "gpt": {"causal"},
    "llama": {"causal"},
    "bert": {"mask"},
    "roberta": {"none"},
    "modernbert": {"none", "mask"},
    "electra": {"none"},
    "gpt_documents": {"mask"},
    "gpt_1": {"causal"},
    "llama_documents": {"mask"},
    "roberta_documents": {"mask"},
    "modernbert_documents": {"mask"},
    "xlnet": {"bias"},
    "transformer_xl": {"bias"},
    "xlnet_documents": {"bias"},
    "t5": {"bias", "none"},
    "transformer": {"causal", "none"},
    "elmo": set(),
    "elmo_documents": set(),
    "lstm": set(),
    "gpt_bert": {"mask"},
    "gpt_bert_documents": {"mask"},
    "gpt_bert_1": {"mask"},
}
"""Which kernel each of them goes to on a GPU: blocks.attend."""


class Asked(TorchFunctionMode):
    """The kinds of attention."""

    def __init__(self):
        super().__init__()
        self.kinds = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.scaled_dot_product_attention:
            _, _, _, mask, _, causal = args
            if mask is None:
                self.kinds.add("causal" if causal else "none")
            else:
                assert not causal
                self.kinds.add("mask" if mask.dtype == torch.bool else "bias")
                assert mask.requires_grad == (mask.dtype != torch.bool)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", PAPERS)
def test_attention_mask_is_absent_where_not_needed(store, name):
    model, objective = make(name)
    batch = objective.batches(store, model.config, 5).at(3, 1)
    with Asked() as attention:
        objective.loss(model, batch)
    assert attention.kinds == KINDS[name]


def test_gpu_guide_lists_every_attention_kind():
    page = Path("docs/how-to/gpus.md").read_text()
    table = page[page.index("## Which attention") :]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set().union(*KINDS.values())
