"""Search by vectors: the loss is the peer's, passages are found after training, and padding changes no vector."""

import math
import random

import numpy as np
import pytest
import torch
from test_kinds import CONTEXT, MODELS
from torch.nn import functional as F

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task_table import TASKS
from plm_core.finetuning.classifier import Classifier, collate, example_loss, predict
from plm_core.finetuning.featurize import encoded
from plm_core.finetuning.finetune_results import measured
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.task_heads import SEARCH, TEMPERATURE, example_answers
from plm_core.objectives import OBJECTIVES
from plm_core.text.samplers import items_at
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

TASK = TASKS["passages"].task
QUERIES = ["bafo", "limu", "pesa", "toku", "dine", "gota", "kuma", "revo", "silu", "tano", "vemi", "zora"]
SYNONYMS = QUERIES[1:] + QUERIES[:1]


def examples(count, seed):
    """Three words, and a passage of the three that always stand for them, in another order."""
    draw = random.Random(seed)
    for i in range(count):
        chosen = draw.sample(range(len(QUERIES)), 3)
        passage = draw.sample([SYNONYMS[word] for word in chosen], 3)
        yield Example(f"{seed}-{i}", " ".join(QUERIES[word] for word in chosen), " ".join(passage), 0)


def model_of(objective, tokenizer, dtype=torch.float32):
    torch.manual_seed(5)
    kind, config = MODELS[objective]
    shape = {"vocab_size": tokenizer.vocab_size, "context": CONTEXT, "layers": 2, "width": 24}
    shape |= {} if objective == "bidirectional" else {"heads": 3}
    model = Classifier(kind(config(**shape, dropout=0.0)), input_format_of(objective), "search", 0, 0.1).to(dtype)
    for parameter in model.backbone.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)  # these layers are narrow
    return model.eval()


def rows_of(some, objective, tokenizer):
    return encoded(list(some), TASK, input_format_of(objective), tokenizer, CONTEXT)


def test_search_head_learns_synonyms_of_query_words(tokenizer, device, tmp_path):
    model = model_of("masked", tokenizer)
    learned, test = (rows_of(examples(n, seed), "masked", tokenizer) for n, seed in ((400, 1), (99, 2)))

    def score():
        joined = example_answers(TASK, test, predict(model, test.encoded, 13, device.device), tokenizer)
        return measured(TASK, learned.examples, test.examples, joined)["ndcg_at_10"]

    def batch_at(step):
        return collate([learned.encoded[i] for i in items_at(1, step, 32, 400)], None, SEARCH)

    def validate(_):
        return Validation(predict(model, learned.encoded, 99, device.device).loss)

    before = score()
    config = LoopConfig(seed=1, steps=200, batch=32, optimizer=OptimizerConfig(5e-3, 20), valid_every=50)
    list(train(model, example_loss, batch_at, validate, config, device, Snapshots(tmp_path)))
    assert before < 0.1 < 0.3 < score()


@pytest.mark.parametrize("objective", OBJECTIVES)
@torch.no_grad()
def test_search_vector_is_the_mean_of_states_without_padding(objective, tokenizer, device):
    model = model_of(objective, tokenizer, torch.float64)
    rows = rows_of(examples(7, 3), objective, tokenizer)
    together, alone = (predict(model, rows.encoded, batch, device.device).answers for batch in (7, 1))
    np.testing.assert_allclose(np.stack(together), np.stack(alone), atol=1e-6)
    for row, vectors in zip(rows.encoded, together, strict=True):
        for written, vector in zip(row.sequences, vectors, strict=True):
            ids, segments = torch.tensor([written.ids]), torch.tensor([written.segments])
            states = model.input_format.states(model.backbone, ids, segments, torch.tensor([ids.shape[1]]))
            np.testing.assert_allclose(F.normalize(states[0].mean(0), dim=0).numpy(), vector, atol=1e-6)


@torch.no_grad()
def test_search_loss_matches_sentence_transformers(tokenizer):
    losses = pytest.importorskip("sentence_transformers.losses")
    model = model_of("masked", tokenizer, torch.float64)
    batch = collate(rows_of(examples(9, 4), "masked", tokenizer).encoded, None, SEARCH)
    vectors = model(batch)
    peer = losses.MultipleNegativesRankingLoss(torch.nn.Module(), scale=1 / TEMPERATURE)
    expected = peer.compute_loss_from_embeddings([vectors[:, 0], vectors[:, 1]], None)
    loss = example_loss(model, batch)
    assert float(loss.nll) / int(loss.num_targets) == pytest.approx(float(expected), rel=1e-6)


def test_search_loss_ignores_duplicate_texts_of_a_batch(tokenizer):
    texts = [("q", "x"), ("q", "y"), ("r", "x"), ("s", "z")]
    batch = collate(rows_of([Example("", *both, 0) for both in texts], "masked", tokenizer).encoded, None, SEARCH)
    vectors = F.normalize(torch.randn(4, 2, 8, dtype=torch.float64), dim=-1)
    cosines = (vectors[:, 0] @ vectors[:, 1].T / TEMPERATURE).tolist()
    choices = [[0, 3], [1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    losses = (math.log(sum(math.exp(cosines[i][j]) for j in some)) - cosines[i][i] for i, some in enumerate(choices))
    assert float(SEARCH.loss(vectors, batch.targets)) == pytest.approx(sum(losses), rel=1e-6)


def test_search_reports_truncated_texts(tokenizer):
    rows = rows_of([Example("", "bafo", "limu " * 99, 0), Example("", "bafo", "limu", 0)], "masked", tokenizer)
    assert rows.cut == 1
    assert all(len(written.ids) <= CONTEXT for row in rows.encoded for written in row.sequences)
