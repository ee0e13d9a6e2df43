"""Each paper as it is trained: a model and its objective, tiny, no two sizes equal."""

from dataclasses import replace

import torch

from plm_core.configs.architectures import EncoderDecoderConfig
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.electra import ELECTRA, ELECTRAConfig
from plm_core.models.elmo import ELMo, ELMoConfig
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.llama import Llama, LlamaConfig
from plm_core.models.modernbert import ModernBERT, ModernBERTConfig
from plm_core.models.t5 import T5, T5Config
from plm_core.models.transformer import Transformer
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.objectives.bidirectional import Bidirectional
from plm_core.objectives.causal import Causal
from plm_core.objectives.hybrid import Hybrid
from plm_core.objectives.masked import Masked
from plm_core.objectives.permutation import Permutation
from plm_core.objectives.replaced import Replaced
from plm_core.objectives.span_corruption import SpanCorruption

SIZES = {"vocab_size": 307, "context": 29, "layers": 2, "heads": 3, "width": 24, "dropout": 0.0}
LSTM = {name: size for name, size in SIZES.items() if name != "heads"} | {"cells": 53}
LSTM |= {"characters": 5, "longest": 11, "filters": ((1, 7), (3, 13)), "highways": 1}

PAPERS = {
    "gpt": (GPT, GPTConfig(**SIZES), Causal()),
    "llama": (Llama, LlamaConfig(**SIZES, kv_heads=1), Causal()),
    "bert": (BERT, BERTConfig(**SIZES), Masked(next_sentence=True)),
    "roberta": (BERT, BERTConfig(**SIZES), Masked()),
    "modernbert": (ModernBERT, ModernBERTConfig(**SIZES, global_every=2, window=8), Masked()),
    "electra": (ELECTRA, ELECTRAConfig(**SIZES, embedding=16), Replaced()),
    "gpt_documents": (GPT, GPTConfig(**SIZES), Causal(packing="documents")),
    "gpt_1": (GPT, GPTConfig(**SIZES, norm="post"), Causal()),
    "llama_documents": (Llama, LlamaConfig(**SIZES, kv_heads=1), Causal(packing="documents")),
    "roberta_documents": (BERT, BERTConfig(**SIZES), Masked(packing="documents")),
    "modernbert_documents": (ModernBERT, ModernBERTConfig(**SIZES, window=8), Masked(packing="documents")),
    "xlnet": (XLNet, XLNetConfig(**SIZES, memory=11), Permutation(predict=3, reuse=17)),
    "transformer_xl": (XLNet, XLNetConfig(**SIZES, memory=31), Causal(streams=True)),
    "xlnet_documents": (
        XLNet,
        XLNetConfig(**SIZES, memory=11),
        Permutation(predict=3, reuse=17, packing="documents"),
    ),
    "t5": (T5, T5Config(**SIZES, gated=True, sentinels=7), SpanCorruption(rate=0.25)),
    "transformer": (Transformer, EncoderDecoderConfig(**SIZES, sentinels=7), SpanCorruption()),
    "gpt_bert": (Llama, LlamaConfig(**SIZES, kv_heads=1), Hybrid(masked_rows=0.5, rate=0.3)),
    "elmo": (ELMo, ELMoConfig(**LSTM), Bidirectional()),
    "elmo_documents": (ELMo, ELMoConfig(**LSTM, activation="tanh"), Bidirectional(packing="documents")),
    "lstm": (ELMo, ELMoConfig(**LSTM, backward=False), Causal()),
    "gpt_bert_documents": (GPT, GPTConfig(**SIZES), Hybrid(packing="documents", masked_rows=0.6, rate=0.3)),
    "gpt_bert_1": (GPT, GPTConfig(**SIZES, norm="post"), Hybrid(packing="documents", masked_rows=0.6, rate=0.3)),
}


def make(name, seed=0, dtype=torch.float64, **sizes):
    """The model and the objective of a paper; keywords replace the model's sizes."""
    model, config, objective = PAPERS[name]
    torch.manual_seed(seed)
    return model(replace(config, **sizes)).to(dtype), objective


@torch.no_grad()
def loud(name):
    """The same with weights far from the initial ones: what a token sees then changes its prediction."""
    model, objective = make(name)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model, objective
