"""Texts are classified, words tagged, answers found and choices made by each paper's model, and it is learned."""

import math
import random
from dataclasses import replace

import pytest
import torch

from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.task import GlueTask, iob2
from plm_core.finetuning.classifier import Classifier, collate, example_loss, predict, set_dropout
from plm_core.finetuning.featurize import characters, encoded
from plm_core.finetuning.finetune_results import evidence, measured
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.task_heads import LONGEST_ANSWER, SPANS, AnswerSpan, Predicted, SpanBatch, example_answers
from plm_core.models.bert import BERT, BERTConfig
from plm_core.models.electra import ELECTRA, ELECTRAConfig
from plm_core.models.elmo import ELMo, ELMoConfig
from plm_core.models.gpt import GPT, GPTConfig
from plm_core.models.t5 import T5, T5Config
from plm_core.models.xlnet import XLNet, XLNetConfig
from plm_core.objectives import OBJECTIVES
from plm_core.text.samplers import items_at
from plm_core.training.callbacks.loss_metrics import Validation
from plm_core.training.loop import train
from plm_core.training.optimizer import OptimizerConfig
from plm_core.training.snapshot import Snapshots
from plm_core.training.training_config import LoopConfig

TASKS = {
    "classes": GlueTask("said", "classification", "", ("0", "1", "2"), ("accuracy",), "accuracy"),
    "tags": GlueTask("ner", "token_classification", "", iob2(["PER", "LOC"]), ("entity_f1",), "entity_f1"),
    "spans": GlueTask(
        "qa", "question_answering", "", (), ("exact_match", "answer_f1"), "exact_match+answer_f1", unanswerable=True
    ),
    "choices": GlueTask("choice", "multiple_choice", "", ("0", "1", "2"), ("accuracy",), "accuracy"),
}
MODELS = {
    "bidirectional": (ELMo, ELMoConfig),
    "causal": (GPT, GPTConfig),
    "hybrid": (GPT, GPTConfig),
    "masked": (BERT, BERTConfig),
    "permutation": (XLNet, XLNetConfig),
    "replaced": (ELECTRA, ELECTRAConfig),
    "span_corruption": (T5, T5Config),
}
WORDS = ["bafo", "limu", "pesa", "toku", "dine", "gota"]
EACH = pytest.mark.parametrize("objective", OBJECTIVES)
CONTEXT = 42


def made(name, count, seed):
    """Examples of which nobody knows the answer who does not read: it depends on the words around."""
    return [_MAKERS[name](random.Random(f"{seed}/{i}"), str(i)) for i in range(count)]


def classed(draw, identity):
    """The class is which of three words stands somewhere in the text."""
    words, label = draw.choices(WORDS[3:], k=draw.randint(2, 6)), draw.randrange(3)
    words.insert(draw.randrange(len(words) + 1), WORDS[label])
    return Example(identity, " ".join(words), None, label)


def tagged(draw, identity):
    """A name stands behind `mr`, a place behind `in`; a `jr` behind a name belongs to it."""
    words, tags = [], []
    for _ in range(draw.randint(2, 5)):
        of = draw.choice(["", "", "PER", "LOC"])
        words += [*({"PER": ["mr"], "LOC": ["in"]}.get(of, [])), draw.choice(WORDS)]
        tags += ["O"] * bool(of) + [f"B-{of}" if of else "O"]
        if of == "PER" and draw.random() < 0.5:
            words.append("jr")
            tags.append("I-PER")
    labels = TASKS["tags"].labels
    return Example(identity, " ".join(words), None, 0, tags=tuple(labels.index(tag) for tag in tags))


def spanned(draw, identity):
    """The answer stands behind `is`; where there is none, there is no answer."""
    words = [draw.choice(WORDS) for _ in range(draw.randint(3, 8))]
    answers = ()
    if draw.random() < 0.7:
        place = draw.randrange(len(words))
        answers = (Answer(words[place], len(" ".join([*words[:place], "is", ""]))),)
        words.insert(place, "is")
    return Example(identity, "what?", " ".join(words), 0, answers=answers)


def chosen(draw, identity):
    """The right text says a word of the first again."""
    words = draw.sample(WORDS, 4)
    label = draw.randrange(3)
    others = draw.sample([word for word in WORDS if word not in words[:2]], 3)
    choices = tuple(draw.choice(words[:2]) if i == label else others[i] for i in range(3))
    return Example(identity, " ".join(words[:2]), None, label, choices=choices)


_MAKERS = {"classes": classed, "tags": tagged, "spans": spanned, "choices": chosen}


def new_model(name, objective, tokenizer, dtype=torch.float32):
    torch.manual_seed(5)
    kind, config = MODELS[objective]
    shape = {"vocab_size": tokenizer.vocab_size, "context": CONTEXT, "layers": 2, "width": 24}
    shape |= {"filters": ((1, 24),), "cells": 24, "longest": 9} if kind is ELMo else {"heads": 3}
    model = Classifier(
        kind(config(**shape, dropout=0.0)),
        input_format_of(objective),
        TASKS[name].kind,
        len(TASKS[name].labels),
        0.0,
    ).to(dtype)
    for parameter in model.backbone.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)  # these layers are narrow
    return model


def learned(name, objective, tokenizer, device, folder):
    """The figures of a training on made examples, and its rows of evidence."""
    task, input_format = TASKS[name], input_format_of(objective)
    model = new_model(name, objective, tokenizer)
    training, test = (
        encoded(made(name, count, seed), task, input_format, tokenizer, CONTEXT) for count, seed in ((400, 1), (99, 2))
    )
    steps = 150 if name == "classes" else 300
    config = LoopConfig(seed=1, steps=steps, batch=32, optimizer=OptimizerConfig(5e-3, 20), valid_every=50)

    def batch_at(step):
        chosen = items_at(1, step, 32, len(training.encoded))
        return collate([training.encoded[i] for i in chosen], None, model.kind)

    def validate(_):
        return Validation(predict(model, training.encoded, 99, device.device).loss)

    list(train(model, example_loss, batch_at, validate, config, device, Snapshots(folder)))
    predicted = example_answers(task, test, predict(model, test.encoded, 13, device.device), tokenizer)
    return measured(task, training.examples, test.examples, predicted), list(
        evidence(task, test.examples, predicted, "rule")
    )


NAMES = pytest.mark.parametrize("name", TASKS)


def _marks(name, objective):
    """Each task and each objective is learned in the slow tests, each with each in `make prove`; classes at once."""
    if name == "classes":
        return ()
    turn = list(OBJECTIVES).index(objective) % len(TASKS)
    return pytest.mark.slow if name == list(TASKS)[turn] else pytest.mark.proof


@pytest.mark.parametrize(
    ("name", "objective"),
    [pytest.param(name, objective, marks=_marks(name, objective)) for name in TASKS for objective in OBJECTIVES],
)
def test_task_heads_learn_from_context(tokenizer, device, tmp_path, name, objective):
    figures, rows = learned(name, objective, tokenizer, device, tmp_path)
    assert figures["baseline"] < 0.5
    assert figures["score"] > 0.7, figures
    assert len(rows) == figures["examples"] == 99
    assert all(0 <= float(row[6]) <= 1 for row in rows)


def batch_of(name, objective, tokenizer, count=7, seed=3):
    model = new_model(name, objective, tokenizer, torch.float64)
    rows = encoded(made(name, count, seed), TASKS[name], input_format_of(objective), tokenizer, CONTEXT).encoded
    return model, rows, collate(rows, None, model.kind)


@EACH
@NAMES
@torch.no_grad()
def test_padding_and_neighbours_change_no_answer(tokenizer, device, name, objective):
    model, rows, _ = batch_of(name, objective, tokenizer, 37)
    together, alone = (predict(model, rows, batch, device.device) for batch in (37, 1))
    assert together.loss == pytest.approx(alone.loss, rel=1e-9)
    for first, second in zip(together.answers, alone.answers, strict=True):
        assert first == (second if name == "tags" else pytest.approx(second, rel=1e-9))
    if name == "tags":
        assert together.confidences == pytest.approx(alone.confidences, rel=1e-9)


@EACH
@NAMES
@torch.no_grad()
def test_task_loss_is_mean_negative_log_likelihood(tokenizer, device, name, objective):
    """By hand, row by row, from the states of the model and the head."""
    model, rows, batch = batch_of(name, objective, tokenizer)
    total, count = 0.0, 0
    for row in rows:
        ids, segments = (torch.tensor([getattr(s, part) for s in row.sequences[:1]]) for part in ("ids", "segments"))
        if name in ("classes", "choices"):
            scores = []
            for written in row.sequences:
                ids, segments = torch.tensor([written.ids]), torch.tensor([written.segments])
                lengths = torch.tensor([len(written.ids)])
                states = model.input_format.states(model.backbone, ids, segments, lengths)
                scores.append(model.head(model.input_format.summary(model.backbone, states, lengths))[0])
            total -= torch.cat(scores).log_softmax(0)[row.label]
            count += 1
            continue
        states = model.input_format.states(model.backbone, ids, segments, torch.tensor([ids.shape[1]]))[0]
        outputs = model.head(states[list(row.places)])
        if name == "tags":
            total -= sum(logits.log_softmax(0)[tag] for logits, tag in zip(outputs, row.label, strict=True))
            count += len(row.label)
        else:
            total -= sum(outputs[:, side].log_softmax(0)[row.label[side]] for side in (0, 1)) / 2
            count += 1
    loss = example_loss(model, batch)
    assert float(loss.nll) == pytest.approx(float(total), rel=1e-9)
    assert int(loss.num_targets) == count


@NAMES
def test_auxiliary_loss_is_language_modelling_on_each_sequence(tokenizer, name):
    model, rows, batch = batch_of(name, "causal", tokenizer)
    alone = example_loss(model, batch)
    model.auxiliary = 0.5
    both = example_loss(model, batch)
    language = 0.0
    for row in rows:
        for written in row.sequences:
            ids = torch.tensor([written.ids])
            logits = model.backbone.logits(model.backbone.read(ids))[0, :-1]
            language += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:])) / len(row.sequences)
    means = [float(loss.nll.detach() / loss.num_targets) for loss in (alone, both)]
    assert means[1] - means[0] == pytest.approx(0.5 * language / len(rows), rel=1e-6)


def windowed(name, tokenizer):
    """Examples far longer than the context, by a model that was not trained."""
    some = made(name, 60, 5)
    if name == "tags":
        long = Example("x", " ".join(e.a for e in some), None, 0, tags=tuple(tag for e in some for tag in e.tags))
    else:
        text = " ".join(e.b for e in some)
        long = Example("x", "what?", text, 0, answers=(Answer("bafo", text.rindex("bafo")),))
    rows = encoded([long, some[0]], TASKS[name], input_format_of("masked"), tokenizer, CONTEXT)
    assert len(rows.encoded) > 9
    return rows, new_model(name, "masked", tokenizer, torch.float64)


def test_tags_of_a_long_sentence_come_from_all_windows(tokenizer, device):
    rows, model = windowed("tags", tokenizer)
    predicted = predict(model, rows.encoded, 7, device.device)
    joined = example_answers(TASKS["tags"], rows, predicted, tokenizer)
    for example, answer in zip(rows.examples, joined.answers, strict=True):
        assert len(answer) == len(example.words)
    ids = [tag for row in range(len(rows.owners) - 1) for tag in predicted.answers[row]]
    assert joined.answers[0] == [TASKS["tags"].labels[tag] for tag in ids]
    product = torch.tensor(predicted.confidences[:-1], dtype=torch.float64).prod()
    assert joined.confidences[0] == pytest.approx(float(product), rel=1e-9)


@pytest.mark.parametrize("unanswerable", [True, False])
def test_best_answer_span_of_all_windows_is_taken(tokenizer, device, unanswerable):
    rows, model = windowed("spans", tokenizer)
    task = replace(TASKS["spans"], unanswerable=unanswerable)
    best = -float("inf"), "", 0.0
    nulls = []
    spans = characters(rows.examples[0].b, tokenizer.spell(rows.examples[0].b))
    for row in rows.encoded[:-1]:
        (starts, ends), *_ = model(collate([row], None, model.kind)).detach()
        starts, ends = starts[: len(row.places)], ends[: len(row.places)]
        together = starts.log_softmax(0)[:, None] + ends.log_softmax(0)
        nulls.append((float(starts[0] + ends[0]), float(together[0, 0].exp())))
        for first in range(1, len(starts)):
            for last in range(first, min(first + LONGEST_ANSWER, len(ends))):
                score = float(starts[first] + ends[last])
                if score > best[0]:
                    begin, stop = spans[row.first + first - 1][0], spans[row.first + last - 1][1]
                    best = score, rows.examples[0].b[begin:stop].strip(), float(together[first, last].exp())
    joined = example_answers(task, rows, predict(model, rows.encoded, 7, device.device), tokenizer)
    none = unanswerable and min(score for score, _ in nulls) > best[0]
    expected = ("", math.prod(p for _, p in nulls)) if none else best[1:]
    assert joined.answers[0] == expected[0]
    assert joined.confidences[0] == pytest.approx(expected[1], rel=1e-9)


def test_no_answer_is_given_when_cls_scores_highest(tokenizer, device):
    rows, model = windowed("spans", tokenizer)
    predicted = predict(model, rows.encoded, 7, device.device)
    spans = [span._replace(first=0, last=3, null_score=span.score + 1) for span in predicted.answers]
    never = [span._replace(null_score=-99.0) for span in spans]
    for given, unanswerable, empty in [(spans, True, True), (spans, False, False), (never, True, False)]:
        task = replace(TASKS["spans"], unanswerable=unanswerable)
        joined = example_answers(task, rows, predicted._replace(answers=given), tokenizer)
        assert (joined.answers[1] == "") is empty


def whole(rows, row, margin):
    """The whole text of a row as an answer, with so much larger logits of no answer."""
    return AnswerSpan(1.0, 0, len(rows.encoded[row].places) - 2, 0.5, 1.0 + margin, 0.5)


@pytest.mark.slow
def test_no_answer_threshold_maximizes_the_score(tokenizer, device):
    """Devlin et al. 2019, section 4.3, by trying every one."""
    rng = random.Random(5)
    task = TASKS["spans"]
    rows = encoded(made("spans", 60, 24), task, input_format_of("masked"), tokenizer, CONTEXT)
    predicted = predict(new_model("spans", "masked", tokenizer, torch.float64), rows.encoded, 7, device.device)
    # Questions without an answer tend to have the larger margin; two have the same.
    margins = [rng.gauss(2.0 if rows.examples[owner].answers else 3.5, 1.0) for owner in rows.owners]
    margins[3] = margins[4]
    spans = [whole(rows, row, margin) for row, margin in enumerate(margins)]
    predicted = predicted._replace(answers=spans)

    def score(threshold):
        joined = example_answers(task, rows, predicted, tokenizer, threshold)
        return measured(task, rows.examples, rows.examples, joined)["score"]

    threshold = SPANS.threshold(task, rows, predicted, tokenizer)
    every = [margin + step for margin in margins for step in (-1e-6, 1e-6)]
    assert score(threshold) == pytest.approx(max(map(score, [0.0, *every])))
    assert score(threshold) > score(0.0)
    clear = [
        whole(rows, row, 1.0 if not rows.examples[rows.owners[row]].answers else -1.0) for row in range(len(spans))
    ]
    assert SPANS.threshold(task, rows, predicted._replace(answers=clear), tokenizer) == 0.0


@EACH
def test_dropout_override_reaches_layers_and_attention(objective, tokenizer):
    model = new_model("choices", objective, tokenizer).backbone
    batch = torch.arange(26).reshape(2, 13) % 99
    reading = (batch, torch.zeros_like(batch), torch.ones_like(batch, dtype=torch.bool))
    model.train()
    assert torch.equal(model.encode(*reading), model.encode(*reading))
    set_dropout(model, 0.5)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.5}
    assert {m.dropout for m in model.modules() if hasattr(m, "dropout")} <= {0.5}
    assert not torch.equal(model.encode(*reading), model.encode(*reading))
    set_dropout(model, 0.0)
    assert torch.equal(model.encode(*reading), model.encode(*reading))


def test_answer_span_length_is_limited(tokenizer, device):
    """Start and end whose logits are the largest, but too far from each other, or the wrong way round."""
    columns = torch.full((1, 2, 40), -5.0, dtype=torch.float64)
    columns[0, 0, 1] = columns[0, 1, 1 + LONGEST_ANSWER] = 9.0
    columns[0, 1, LONGEST_ANSWER] = 8.0
    zeros = torch.zeros(1, 40, dtype=torch.long)
    batch = SpanBatch(zeros, zeros, zeros, zeros, zeros)
    ((span, _),) = SPANS.answers(columns, batch)
    assert (span.first, span.last, span.score) == (0, LONGEST_ANSWER - 1, 17.0)
    columns[0, 1, LONGEST_ANSWER] = -5.0
    columns[0, 0, 5], columns[0, 1, 4] = 7.0, 6.5
    ((span, _),) = SPANS.answers(columns, batch)
    assert (span.first, span.last, span.score) == (4, LONGEST_ANSWER, 16.0)


def test_evidence_of_tags_answers_and_choices():
    tags, spans, choices = (TASKS[name] for name in ("tags", "spans", "choices"))
    example = Example("x", "mr Bafo", None, 0, tags=(0, 1))
    (row,) = evidence(tags, [example], Predicted([["O", "B-LOC"]], [0.5], 0.0), "r")
    assert row == ("x", example.sha256, "", "", "O B-PER", "O B-LOC", "0.5", "entity_f1", "r")
    example = Example("y", "what?", "é is", 0, answers=(Answer("é", 0), Answer("is", 2)))
    (row,) = evidence(spans, [example], Predicted(["is"], [0.25], 0.0), "r")
    assert row[4:7] == ('["é", "is"]', "is", "0.25")
    (row,) = evidence(spans, [replace(example, answers=())], Predicted([""], [0.25], 0.0), "r")
    assert row[4:7] == ("[]", "", "0.25")
    example = Example("z", "a", None, 2, choices=("b", "c", "d"))
    (row,) = evidence(choices, [example], Predicted([1], [0.125], 0.0), "r")
    assert row[4:7] == ("2", "1", "0.125")


def test_figures_include_metrics_and_baseline():
    tags, spans, choices = (TASKS[name] for name in ("tags", "spans", "choices"))
    words = [Example(str(i), "mr Bafo", None, 0, tags=(0, 1 + 2 * (i % 2))) for i in range(4)]
    figures = measured(tags, words, words, Predicted([["O", "B-PER"]] * 4, [1.0] * 4, 0.0))
    assert figures == {"score": 0.5, "baseline": 0.0, "entity_f1": 0.5, "examples": 4, "train_examples": 4}
    questions = [Example(str(i), "what?", "is it", 0, answers=(Answer("is it", 0),)[: i % 2]) for i in range(4)]
    figures = measured(spans, questions, questions, Predicted(["", "is it", "", "it"], [1.0] * 4, 0.0))
    assert (figures["exact_match"], figures["answer_f1"]) == (0.75, pytest.approx((3 + 2 / 3) / 4))
    assert figures["score"] == pytest.approx((figures["exact_match"] + figures["answer_f1"]) / 2)
    assert figures["baseline"] == 0.5
    some = [Example(str(i), "a", None, i % 3, choices=("b", "c", "d")) for i in range(4)]
    figures = measured(choices, some, some, Predicted([0, 0, 0, 0], [1.0] * 4, 0.0))
    assert (figures["score"], figures["baseline"]) == (0.5, 0.5)
