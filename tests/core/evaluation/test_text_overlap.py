"""BLEU, chrF and ROUGE are those of sacrebleu and rouge-score, under any weights, and tell a better system apart."""

import csv
import re

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.answers import Translations, parts_of, score_by_subset
from plm_core.evaluation.comparison import compare
from plm_core.evaluation.evaluate_modules import baseline, scores
from plm_core.evaluation.evidence import read_task
from plm_core.evaluation.text_overlap import signature, statistics

WORDS = ["the", "a", "Limu", "river,", "isn't", "1,000", "bafo", "dine.", "(gota)", "pesa-toku", "naïve", "é"]
METRICS = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}


def texts(seed, count=40, several=True):
    """Translations, some of them empty, of one word or right; one to three references of each."""
    draw = np.random.default_rng(seed)
    references = [
        [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(draw.integers(1, 4) if several else 1)]
        for _ in range(count)
    ]
    predictions = []
    for own in references:
        words = own[-1].split()
        changed = [word if draw.random() < 0.7 else str(draw.choice(WORDS)) for word in words]
        predictions.append(["", words[0], " ".join(words), " ".join(changed)][draw.choice(4, p=(0.1, 0.1, 0.2, 0.6))])
    return predictions, references


def streams(references):
    return [[own[i] if i < len(own) else None for own in references] for i in range(max(map(len, references)))]


def results(score, seeds, references, groups=None):
    size = len(references)
    counted = np.stack([statistics([part for part, _ in parts_of(score)], s, references) for s in seeds], axis=1)
    groups = np.arange(size) if groups is None else groups
    return Translations(score, counted, np.zeros(size, int), ("",), groups)


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_translation_scores_are_those_of_sacrebleu_under_any_weights(seed, several):
    predictions, references = texts(seed, several=several)
    other = predictions[::-1]
    expected = [metric.corpus_score(predictions, streams(references)).score / 100 for metric in METRICS.values()]
    measured = scores(["bleu", "chrf", "bleu+chrf"], predictions, references, ())
    assert list(measured.values()) == pytest.approx([*expected, sum(expected) / 2], abs=1e-9)
    # A weight is so many copies, for each of two seeds.
    weights = np.random.default_rng(seed).integers(0, 3, (5, len(references)))
    values = {name: results(name, [predictions, other], references).values(weights.astype(float)) for name in METRICS}
    for row, copies in enumerate(weights):
        chosen = np.repeat(np.arange(len(references)), copies)
        for column, answers in enumerate((predictions, other)):
            sides = [answers[i] for i in chosen], streams([references[i] for i in chosen])
            for name, metric in METRICS.items():
                assert values[name][row, column] == pytest.approx(metric.corpus_score(*sides).score / 100, abs=1e-9)


def test_translation_scores_at_the_edges():
    """No n-gram of four words; no word; no match; no match of three words, which is smoothed."""
    for prediction, right in (("the cat",) * 2, ("", "a b c d"), ("x", "a b c d"), ("a b x y z", "a b c d e")):
        for name, metric in METRICS.items():
            expected = metric.corpus_score([prediction], [[right]]).score / 100
            assert scores([name], [prediction], [[right]], ())[name] == pytest.approx(expected, abs=1e-9)


def test_a_text_of_its_own_is_scored_with_the_orders_that_it_has():
    predictions, references = texts(5)
    exact, nothing = (results("bleu", [given], references) for given in (predictions, [""] * len(predictions)))
    bleu = sacrebleu.BLEU(effective_order=True)
    alone = [bleu.sentence_score(p, r).score / 100 for p, r in zip(predictions, references, strict=True)]
    assert exact.advantage(nothing) == pytest.approx(np.array(alone), abs=1e-9)
    assert exact.right().tolist() == [[a > 1 - 1e-9 for a in alone]]


@pytest.mark.parametrize("seed", range(3))
def test_rouge_is_that_of_its_authors(seed):
    predictions, references = texts(seed)
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names)
    all_of = [scorer.score_multi(r, p) for p, r in zip(predictions, references, strict=True)]
    expected = [np.mean([scored[name].fmeasure for scored in all_of]) for name in names]
    measured = scores([*names, "rouge1+rouge2+rougeL"], predictions, references, ())
    assert list(measured.values()) == pytest.approx([*expected, np.mean(expected)], abs=1e-9)
    assert baseline("rouge1", references, references, ()) == baseline("bleu", references, references, ()) == 0.0


def test_a_signature_says_how_a_score_was_computed():
    bleu = f"bleu|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert signature("bleu", [["a"], ["b"]]) == bleu
    assert signature("bleu+chrf", [["a"], ["b", "c"]]).startswith("bleu|nrefs:var|case:mixed|eff:no|tok:13a|")
    assert signature("chrf", [["a", "d"], ["b", "c"]]).startswith("chrf|nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no")
    assert signature("rouge2", [["a"]]).startswith("rouge-score 0.1.2")
    assert signature("accuracy", [0, 1]) == ""
    with pytest.raises(ValueError, match="scores of one family"):
        parts_of("bleu+rouge1")


def system(draw, references, share):
    """Translations in which a share of the words is right."""
    return [" ".join(w if draw.random() < share else "x" for w in own[0].split()) for own in references]


@pytest.mark.parametrize("score", ["bleu", "chrf", "bleu+chrf"])
def test_resampling_detects_a_better_system_and_no_equal_one(score):
    draw = np.random.default_rng(7)
    references = [[" ".join(draw.choice(WORDS, 12))] for _ in range(150)]
    groups = np.arange(150) // 3  # documents of three texts
    same, better, equal = (
        results(score, [system(draw, references, share) for _ in range(2)], references, groups)
        for share in (0.7, 0.8, 0.7)
    )
    rng = significance.generator(1)
    assert significance.permutation([(same, better)], rng, 500) < 0.01
    assert significance.permutation([(same, equal)], rng, 500) > 0.05
    assert significance.permutation([(same, same)], rng, 100) == 1.0
    drawn = significance.bootstrap([same, better, equal], rng, 500)
    first, second, third = (side[""] for side in drawn)
    assert significance.interval(second - first).low > 0
    assert significance.interval(third - first).low < 0 < significance.interval(third - first).high
    assert significance.effect(same, better) > 0 == significance.effect(same, same)


def put(folder, score, predictions, references):
    folder.mkdir()
    with (folder / "mt.1.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("id", "sha256", "subset", "label", "prediction", "score", "measured", "group"))
        for i, (answer, own) in enumerate(zip(predictions, references, strict=True)):
            label = "[" + ", ".join(f'"{text}"' for text in own) + "]"
            rows.writerow((f"{i:03}", f"s{i}", "", label, answer, score, "r", f"d{i // 2}"))
    return folder


@pytest.mark.parametrize("score", ["bleu", "rouge1+rouge2+rougeL"])
def test_models_are_compared_by_what_they_wrote(tmp_path, score):
    draw = np.random.default_rng(3)
    references = [[" ".join(draw.choice(WORDS, 9)) for _ in range(2)] for _ in range(80)]
    sides = [system(draw, references, share) for share in (0.6, 0.9)]
    folders = tuple(put(tmp_path / name, score, side, references) for name, side in zip("ab", sides, strict=True))
    (row,) = compare(folders, ("a", "b")).tasks
    expected = [scores([score], side, references, ())[score] for side in sides]
    assert (row.first.value, row.second.value) == pytest.approx(tuple(expected))
    assert (row.better, row.groups, row.test) == ("b", 40, "paired permutation")
    table = read_task([folders[0] / "mt.1.csv"])
    assert score_by_subset(table.unread()) == {"": 0.0}
    other = {"bleu": "chrf", "rouge1+rouge2+rougeL": "rouge2"}[score]
    assert table.by(other).value == pytest.approx(scores([other], sides[0], references, ())[other])
    with pytest.raises(ValueError, match="measures classes"):
        table.by("accuracy")
    file = folders[0] / "mt.1.csv"
    file.write_text(re.sub(r'"\[.*?\]"', "[]", file.read_text(), count=1))
    with pytest.raises(UserError, match="'000': no reference; expected at least one"):
        read_task([file])
