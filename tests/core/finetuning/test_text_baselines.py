"""Texts without a language model: phrases learned from pairs, the first sentences, and which of them is chosen."""

import random

import pytest

from plm_core.benchmarks.example_readers import Answer, Example
from plm_core.benchmarks.task import GlueTask
from plm_core.evaluation.evaluate_modules import scores
from plm_core.finetuning.linear_baselines import predict
from plm_core.finetuning.text_baselines import PhraseTable, lead

TRANSLATION = GlueTask("mt", "translation", "?", (), ("bleu", "chrf"), "bleu")
SUMMARY = GlueTask("tldr", "summarization", "?", (), ("rouge1",), "rouge1")
LEXICON = {"haus": "house", "hund": "dog", "rot": "red", "klein": "small", "sieht": "sees", "den fluss": "the river"}


def example(identity, source, *references):
    return Example(identity, source, None, 0, answers=tuple(Answer(text, 0) for text in references))


def pairs(count, seed):
    draw = random.Random(seed)
    for i in range(count):
        words = draw.choices(list(LEXICON), k=draw.randint(3, 8))
        source = " ".join(words).capitalize() + "."
        yield example(f"{seed}-{i}", source, " ".join(LEXICON[word] for word in words).capitalize() + ".")


def references(examples):
    return [[reference.text for reference in e.answers] for e in examples]


def test_phrases_are_learned_and_chosen_over_a_copy():
    train, valid, test = (list(pairs(count, seed)) for count, seed in ((300, 1), (30, 2), (60, 3)))
    answers, sure = predict(TRANSLATION, train, valid, test)
    assert scores(["bleu"], answers, references(test), ())["bleu"] > 0.85
    assert scores(["bleu"], [e.a for e in test], references(test), ())["bleu"] < 0.05
    assert all(value != value for value in sure)
    assert PhraseTable(train).translate("Hund sieht Zürich.") == "dog sees Zürich."  # an unknown word stays


def test_a_copy_is_chosen_where_nothing_can_be_learned():
    same = [example(f"{i}", f"name{i} place{i}, {i}", f"name{i} place{i}, {i}") for i in range(40)]
    assert predict(TRANSLATION, same[:10], same[10:20], same[20:])[0] == [e.a for e in same[20:]]
    # Nothing is short enough to be aligned.
    long = example("long", "word " * 101, "wort " * 101)
    assert predict(TRANSLATION, [long], same[:5], same[5:7])[0] == [e.a for e in same[5:7]]


@pytest.mark.parametrize("sentences", [1, 3])
def test_the_first_sentences_are_chosen_by_the_validation_examples(sentences):
    draw = random.Random(1)
    words = [f"word{i}" for i in range(200)]
    some = []
    for i in range(20):
        text = [" ".join(draw.sample(words, 6)).capitalize() + "." for _ in range(6)]
        some.append(example(f"{i}", " ".join(text), "nothing", " ".join(text[:sentences])))
    assert predict(SUMMARY, some[:1], some[:10], some[10:])[0] == [e.answers[1].text for e in some[10:]]


def test_sentences_end_at_their_signs():
    text = 'We use e.g. this one. It is "good." Really?  Yes! 3 of 5.'
    assert lead(1)(text) == "We use e.g. this one."
    assert lead(4)("一。二！三？四") == "一。二！三？四"
