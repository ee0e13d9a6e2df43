"""How often the gate errs: pairs of simulated models through the real gate. `make bench-gate`; half an hour.

Each pair answers nine tasks of GLUE's sizes (at most 1,000 examples), from 2, 3 or 5 seeds. Examples come in documents
of 1 to 20, some of which are hard for both models and some of which either model likes. Half of the pairs are equal:
their expected scores are, over documents and seeds. In the other half the challenger is better by one of ``GAINS`` at
every task. A fifth of the equal pairs are judged once more as if each example were independent, and a tenth as many
champions meet an equal challenger on the same examples in each of 30 nights. Rates with intervals at 95 % are printed
and written to ``artifacts/bench/gate.json``.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import norm

from plm_core.evaluation.answers import Answers, score_by_subset
from plm_core.evaluation.evidence import Table
from plm_core.evaluation.gate_rules import GateRules, MetricRule
from plm_core.evaluation.promotion_gate import Evidence, decide
from plm_core.evaluation.significance import wilson
from plm_core.shared.files import atomic_text

OUT = Path("artifacts/bench/gate.json")
TASKS = {
    "cola": ("matthews", 1000, 2, 0.80), "sst2": ("accuracy", 872, 2, 0.80), "mrpc": ("accuracy+f1:1", 408, 2, 0.75),
    "qqp": ("accuracy+f1:1", 1000, 2, 0.80), "stsb": ("pearson+spearman", 1000, 0, 0.80),
    "mnli": ("accuracy", 1000, 3, 0.70), "qnli": ("accuracy", 1000, 2, 0.80), "rte": ("accuracy", 277, 2, 0.60),
    "wnli": ("accuracy", 71, 2, 0.55),
}  # fmt: skip
"""The score, the examples, the classes, and how often a model is right."""
GAINS = (0.01, 0.02, 0.04)
SEEDS = (2, 3, 5)
SHARED, LIKED, HARD, SPREAD = 0.5, 0.4, 0.7, 0.08
"""Standard deviations on the probit scale: of documents for both models, for one; of examples; of seeds (0.08 is two
points of accuracy)."""
TOTAL = float(np.sqrt(1 + SHARED**2 + LIKED**2 + HARD**2 + SPREAD**2))
RULES = GateRules(
    primary="score",
    alpha=0.05,
    margin=0.01,
    metrics={"score": MetricRule("higher", 0.03), **{f"{task}/score": MetricRule("higher", 0.03) for task in TASKS}},
)
FEW = ("sst2", "qnli", "rte")
"""The tasks of the nights."""
NIGHTS = 30
RESAMPLES = 500
"""A twentieth of the gate's: an error rate needs no more."""
FINER = 1_000
"""For the nights, whose level comes down to a thirtieth."""


def examples(rng, task):
    """What a task asks: the labels, the group of each example, and how easy it is for any model."""
    _, size, classes, _ = TASKS[task]
    groups = np.repeat(np.arange(size), rng.integers(1, 21, size))[:size]
    easy = rng.normal(size=size)[groups] * SHARED + rng.normal(size=size) * HARD
    return rng.integers(classes, size=size) if classes else rng.uniform(0, 5, size), groups, easy


def answers(rng, task, questions, gain, seeds):
    """What a model says that is better by ``gain`` than others."""
    score, size, classes, right = TASKS[task]
    labels, groups, easy = questions
    skill = norm.ppf(right + gain) * TOTAL + rng.normal(size=(seeds, 1)) * SPREAD
    latent = skill + easy + rng.normal(size=size)[groups] * LIKED + rng.normal(size=(seeds, size))
    if classes:
        wrong = (labels + rng.integers(1, classes, size=(seeds, size))) % classes
        predictions = np.where(latent > 0, labels, wrong)
    else:  # the surer, the nearer
        predictions = labels + (skill + easy - latent) * 2.5 / np.maximum(skill, 0.1)
    return Answers(score, labels, predictions, np.zeros(size, int), tuple(map(str, range(classes))), ("",), groups)


def table(task, results):
    examples = tuple((str(i), "", "", "") for i in range(len(results.labels)))
    return Table(examples, f"{task}/score", score_by_subset(results)[""], results)


def evidence(by_task, grouped=True):
    """What a model said to each task; with ``grouped`` false, as if each example were of a document of its own."""
    if not grouped:
        by_task = {task: replace(results, groups=np.arange(len(results.labels))) for task, results in by_task.items()}
    return Evidence({task: table(task, results) for task, results in by_task.items()}, 1.0)


def judged(seed, gain):
    """Whether the challenger passes, and whether a task is called worse; of a fifth without documents too."""
    rng = np.random.default_rng(seed)
    seeds = int(rng.choice(SEEDS))
    questions = {task: examples(rng, task) for task in TASKS}
    old, new = (
        {task: answers(rng, task, questions[task], advantage, seeds) for task in TASKS} for advantage in (0.0, gain)
    )
    outcomes = []
    for grouped in (True, False)[: 1 + (seed % 5 == 0 and not gain)]:
        decision = decide(evidence(new, grouped), evidence(old, grouped), RULES, RESAMPLES)
        outcomes += [decision.passed, any(row.verdict == "worse" for row in decision.table)]
    return outcomes


def nights(seed):
    """Whether one of ``NIGHTS`` challengers that are equal to the champion passes: without the correction, and with."""
    rng = np.random.default_rng(seed)
    questions = {task: examples(rng, task) for task in FEW}
    rules = replace(RULES, metrics={name: RULES.metrics[name] for name in ("score", *(f"{t}/score" for t in FEW))})
    champion = evidence({task: answers(rng, task, questions[task], 0.0, 3) for task in FEW})
    passed = [False, False]
    for night in range(NIGHTS):
        challenger = evidence({task: answers(rng, task, questions[task], 0.0, 3) for task in FEW})
        for way, before in enumerate((0, night)):
            passed[way] = passed[way] or decide(challenger, champion, rules, FINER, before).passed
    return passed


def rate(work, hits):
    share = float(np.mean(hits))
    interval = wilson(share, len(hits))
    print(f"{work:58} {share:7.1%}   {interval.low:.1%} to {interval.high:.1%} of {len(hits):,}")
    return {"work": work, "rate": share, "low": interval.low, "high": interval.high, "pairs": len(hits)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="equal ones, and as many that differ")
    pairs = parser.parse_args().pairs
    gains = [0.0] * pairs + [GAINS[i % len(GAINS)] for i in range(pairs)]
    with ProcessPoolExecutor() as pool:
        outcomes = list(zip(gains, pool.map(judged, range(len(gains)), gains, chunksize=5), strict=True))
        asked_again = list(pool.map(nights, range(pairs // 10)))
    rows = []
    for column, how in ((0, ""), (2, ", documents not known")):
        verdicts = [(gain, outcome[column : column + 2]) for gain, outcome in outcomes if len(outcome) > column]
        rows.append(rate(f"equal{how}: promoted", [passed for gain, (passed, _) in verdicts if not gain]))
        rows.append(rate(f"equal{how}: a task called worse", [worse for gain, (_, worse) in verdicts if not gain]))
    for better in GAINS:
        rows.append(
            rate(f"better by {better:g}: promoted", [outcome[0] for gain, outcome in outcomes if gain == better])
        )
    for way, how in enumerate((", each at alpha", "")):
        work = f"{NIGHTS} nights of equal challengers{how}: any promoted"
        rows.append(rate(work, [passed[way] for passed in asked_again]))
    atomic_text(OUT, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
