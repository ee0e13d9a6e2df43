"""Linear models on words: what they can learn of each kind of task, what they cannot, and what they say of it."""

import math
import random
from dataclasses import replace

import pytest

from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.task import GlueTask, iob2
from plm_core.evaluation.evaluate_modules import scores
from plm_core.finetuning import finetune_results, linear_baselines
from plm_core.finetuning.task_heads import Predicted

MOOD = GlueTask("mood", "classification", "?", ("bad", "good"), ("accuracy",), "accuracy")
SAME = GlueTask("same", "classification", "?", ("no", "yes"), ("accuracy",), "accuracy")
LENGTH = GlueTask("length", "regression", "?", (), ("pearson",), "pearson")
WORDS = [f"word{i}" for i in range(40)]


def moods(count, seed, words=(("awful", "poor"), ("lovely", "great"))):
    chance = random.Random(seed)
    for i in range(count):
        label = i % 2
        text = [*chance.choices(WORDS, k=6), chance.choice(words[label])]
        yield Example(f"{seed}-{i}", " ".join(chance.sample(text, 7)), None, label)


def right(answers, examples):
    return sum(a == e.label for a, e in zip(answers, examples, strict=True)) / len(examples)


def test_linear_baseline_learns_words_of_a_class():
    train, valid, test = (list(moods(n, seed)) for n, seed in ((200, 1), (40, 2), (100, 3)))
    answers, sure = linear_baselines.predict(MOOD, train, valid, test)
    assert right(answers, test) > 0.95
    assert all(0.5 <= p <= 1 for p in sure)
    assert sum(sure) / len(sure) > 0.8


def test_linear_baseline_learns_characters_without_spaces():
    characters = {word: chr(0x4E00 + i) for i, word in enumerate([*WORDS, "awful", "poor", "lovely", "great"])}
    train, valid, test = (
        [replace(e, a="".join(characters[word] for word in e.a.split())) for e in moods(n, seed)]
        for n, seed in ((200, 1), (40, 2), (100, 3))
    )
    assert right(linear_baselines.predict(MOOD, train, valid, test)[0], test) > 0.9


def test_linear_baseline_sees_overlap_of_pairs():
    def pairs(count, seed):
        chance = random.Random(seed)
        for i in range(count):
            a = chance.sample(WORDS, 5)
            b = chance.sample(a, 5) if i % 2 else chance.sample([w for w in WORDS if w not in a], 5)
            yield Example(f"{seed}-{i}", " ".join(a), " ".join(b), i % 2)

    train, valid, test = (list(pairs(n, seed)) for n, seed in ((400, 1), (50, 2), (100, 3)))
    assert right(linear_baselines.predict(SAME, train, valid, test)[0], test) > 0.9


def test_linear_baseline_regression_has_no_confidence():
    def lengths(count, seed):
        chance = random.Random(seed)
        for i in range(count):
            high = chance.randrange(5)
            yield Example(f"{seed}-{i}", " ".join(["high"] * high + ["low"] * (4 - high)), None, float(high))

    train, valid, test = (list(lengths(n, seed)) for n, seed in ((100, 1), (20, 2), (50, 3)))
    answers, sure = linear_baselines.predict(LENGTH, train, valid, test)
    assert max(abs(a - e.label) for a, e in zip(answers, test, strict=True)) < 0.6
    assert all(math.isnan(p) for p in sure)


@pytest.mark.parametrize("valid_labels", [[3.0], [3.0, 3.0]])
def test_linear_baseline_allows_constant_validation_numbers(valid_labels):
    train = [Example(f"t{i}", "high " * i, None, float(i)) for i in range(1, 5)]
    valid = [Example(f"v{i}", "high", None, label) for i, label in enumerate(valid_labels)]
    assert len(linear_baselines.predict(LENGTH, train, valid, train)[0]) == 4


@pytest.mark.parametrize("seen", [(0, 1), (2,)], ids=["two of three classes", "one"])
def test_linear_baseline_never_answers_an_unseen_class(seen):
    task = replace(MOOD, labels=("bad", "good", "odd"))
    examples = [Example(f"{i}", ("awful", "lovely", "strange")[i % 3], None, i % 3) for i in range(30)]
    train = [e for e in examples if e.label in seen]
    answers, sure = linear_baselines.predict(task, train, examples, examples)
    assert all(answer == e.label for answer, e in zip(answers, examples, strict=True) if e.label in seen)
    assert set(answers) <= set(seen)
    assert all(0 < p <= 1 for p in sure)
    nothing_known = [e for e in examples if e.label not in seen]
    assert set(linear_baselines.predict(task, train, nothing_known, examples)[0]) <= set(seen)


def test_linear_baseline_learns_from_unique_words():
    train = [Example("1", "awful", None, 0), Example("2", "lovely", None, 1)]
    assert linear_baselines.predict(MOOD, train, train, train)[0] == [0, 1]


NAMES = GlueTask("names", "token_classification", "?", iob2(("PER", "LOC")), ("entity_f1",), "entity_f1")
PLACES = GlueTask("places", "multiple_choice", "?", ("1", "2", "3"), ("accuracy",), "accuracy")
ASKED = GlueTask("asked", "question_answering", "?", (), ("answer_f1",), "answer_f1")
UNANSWERABLE = GlueTask("some", "question_answering", "?", (), ("exact_match",), "exact_match", unanswerable=True)
FILLERS = ["the", "of", "and", "so", "we", "then", "it", "was", "all", "day"]


def sentences(count, seed):
    """Persons are behind mr, places behind in; only their shape and what stands before tells them."""
    draw = random.Random(seed)
    for number in range(count):
        words, tags = [], []
        for _ in range(draw.randint(2, 9)):
            if draw.random() < 0.3:
                kind, before = draw.choice([(1, "mr"), (3, "in")])
                name = ["".join(draw.choices("abcdefg", k=4)).capitalize() for _ in range(draw.randint(1, 2))]
                words += [before, *name]
                tags += [0, kind, *[kind + 1] * (len(name) - 1)]
            else:
                words.append(draw.choice(FILLERS))
                tags.append(0)
        yield Example(f"{seed}-{number}", " ".join(words), None, 0, tags=tuple(tags))


def asked_of(count, seed, none=0.0):
    """A year, where when is asked, and a name where who is; some questions are of words that the text has not."""
    draw = random.Random(seed)
    for number in range(count):
        year, name = str(draw.randint(1000, 2000)), draw.choice(["Ann", "Bob", "Cid", "Dan"]) + draw.choice("xyz")
        text = " ".join([*draw.choices(FILLERS, k=6), "born", "in", year, *draw.choices(FILLERS, k=6), "Mr", name])
        question, answer = draw.choice([("when was he born?", year), ("who is it?", name)])
        answers = (Answer(answer, text.index(answer)),)
        if draw.random() < none:
            question, answers = "when did zebras sing aloud?", ()
        yield Example(f"{seed}-{number}", question, text, 0, answers=answers)


def options(count, seed):
    """The right choice has two words of the question."""
    draw = random.Random(seed)
    words = [f"word{i}" for i in range(99)]
    for number in range(count):
        question = draw.sample(words, 6)
        texts = [" ".join(draw.sample(words, 5)) for _ in range(3)]
        label = draw.randrange(3)
        texts[label] = " ".join([*draw.sample(words, 3), *draw.sample(question, 2)])
        yield Example(f"{seed}-{number}", " ".join(question), None, label, choices=tuple(texts))


def score(task, made, count=300):
    train, valid, test = (list(made(n, seed)) for n, seed in ((count, 1), (30, 2), (60, 3)))
    answers, sure = linear_baselines.predict(task, train, valid, test)
    assert len(answers) == len(sure) == len(test)
    assert all(0 < chance <= 1 for chance in sure)
    figures = finetune_results.measured(task, train, test, Predicted(answers, sure, math.nan))
    assert linear_baselines.predict(task, train, valid, test) == (answers, sure)
    return figures["score"], figures["baseline"], answers, test


def test_linear_baseline_tags_names_by_shape_and_context():
    reached, without, answers, test = score(NAMES, sentences)
    assert without == 0.0
    assert reached > 0.95
    gold = [[NAMES.labels[tag] for tag in e.tags] for e in test]
    assert reached == scores(["entity_f1"], answers, gold, NAMES.labels)["entity_f1"]


def test_linear_baseline_chooses_by_shared_words():
    reached, without, _, _ = score(PLACES, options, 150)
    assert without < 0.5
    assert reached > 0.85


def test_linear_baseline_finds_answers_by_shape():
    reached, without, answers, test = score(ASKED, asked_of)
    assert without == 0.0
    assert reached > 0.85
    assert all(answer in (e.b or "") for answer, e in zip(answers, test, strict=True))


def test_linear_baseline_may_give_no_answer():
    reached, without, answers, _ = score(UNANSWERABLE, lambda n, seed: asked_of(n, seed, 0.4))
    assert reached > max(without, 0.6) + 0.15
    assert "" in answers


@pytest.mark.parametrize("text", ["", "so"])
def test_linear_baseline_allows_wordless_texts(text):
    test = [Example("1", "when?", text, 0, answers=(Answer("so", 0),) if text else ())]
    train = list(asked_of(9, 1))
    (answer,), _ = linear_baselines.predict(ASKED, train, train, test)
    assert answer == text
    nothing = [Example("2", "when?", "", 0)]
    assert linear_baselines.predict(ASKED, nothing, nothing, test)[0] == [""]


def test_linear_baseline_repeats_constant_tags():
    train = [Example("1", "so it was", None, 0, tags=(0, 0, 0))]
    assert linear_baselines.predict(NAMES, train, train, train)[0] == [["O", "O", "O"]]
    assert scores(["entity_f1"], [["O"] * 3], [["O"] * 3], NAMES.labels)["entity_f1"] == 0.0


def test_bm25_ranks_as_computed_by_hand():
    """ "the" is everywhere and weighs little; "lime" twice in a long text is worth less than once in a short one."""
    passages = ["the lime", "the lime lime tree and the house of the old man", "the tree"]
    k, b, mean = 1.2, 0.75, (2 + 11 + 2) / 3
    rarity = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # of lime and of tree
    lime = [rarity * n * (k + 1) / (n + k * (1 - b + b * size / mean)) for n, size in ((1, 2), (2, 11), (0, 2))]
    assert lime[0] > lime[1] > lime[2] == 0
    queries = ["lime", "lime", "lime"]
    examples = [Example(f"{i}", f"{q}{' ' * i}", p, 0) for i, (q, p) in enumerate(zip(queries, passages, strict=True))]
    assert linear_baselines.bm25(examples) == [1, 2, 3]
    assert linear_baselines.bm25([replace(e, a=f"tree{' ' * i}") for i, e in enumerate(examples)]) == [3, 2, 1]


def test_bm25_search_finds_texts_sharing_rare_words():
    task = GlueTask("find", "search", "?", (), ("ndcg_at_10",), "ndcg_at_10")
    chance = random.Random(5)
    texts = [f"{' '.join(chance.choices(WORDS, k=9))} name{i}" for i in range(60)]
    common = [Example(f"{i}", f"what of name{i}", text, 0) for i, text in enumerate(texts)]
    assert linear_baselines.predict(task, [], common[:20], common[20:])[0] == [1] * 40
    strange = [replace(e, a=f"strange {i}") for i, e in enumerate(common)]
    assert set(linear_baselines.predict(task, [], strange[:20], strange[20:])[0]) == {40}
