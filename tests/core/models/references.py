"""A model of transformers with the weights of one of ours, computed in double precision throughout."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetLMHeadModel,
)

from plm_core.interchange.architecture_tables import family_of

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
REFERENCES = {
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "openai-gpt": (OpenAIGPTConfig, OpenAIGPTLMHeadModel),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "bert": (BertConfig, BertForPreTraining),
    "modernbert": (ModernBertConfig, ModernBertForMaskedLM),
    "xlnet": (XLNetConfig, XLNetLMHeadModel),
    "t5": (T5Config, T5ForConditionalGeneration),
}


class Doubles(TorchFunctionMode):
    """Who asks for float32 gets float64: the reference's norms, angles, softmaxes and losses ask, whatever it is of."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        return func(*args, **{k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()})


def exactly(dtype):
    """The context in which a reference of this dtype computes; of float32, as it is."""
    return Doubles() if dtype == torch.float64 else contextlib.nullcontext()


def reference_of(paper, ours, dtype):
    """The reference in evaluation mode."""
    family = family_of(paper, vars(ours.config))
    config, kind = REFERENCES[family.model_type]
    with exactly(dtype):
        theirs = kind(config(**family.their_config(vars(ours.config)), attn_implementation="eager"))
    weights = family.to_theirs(ours.state_dict(), vars(ours.config))
    lacking, unknown = theirs.to(dtype).load_state_dict(weights, strict=False)
    assert set(lacking) <= set(family.tied)
    assert not unknown
    theirs.tie_weights()
    return theirs.eval()


@torch.no_grad()
def agree(ours, theirs, what="logits"):
    """Assert that two tensors agree, relative to the largest number of the reference."""
    assert ours.shape == theirs.shape, what
    assert theirs.abs().max() > 0, what
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    assert difference < TOLERANCE[ours.dtype], f"{what}: {difference:.1e}"


def agree_on_gradients(paper, ours, theirs, but=()):
    """The gradient of every parameter; ``but`` ends the names of those that the input does not reach, in both."""
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in theirs.named_parameters()}
    expected = family_of(paper, vars(ours.config)).to_ours(gradients, vars(ours.config), "the reference")
    assert expected.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        if name.endswith(but):
            assert parameter.grad is None
            assert not expected[name].any()
        else:
            agree(parameter.grad, expected[name], name)
