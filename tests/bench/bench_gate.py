"""How often the gate errs: pairs of simulated models through the real gate. `make bench-gate`; half an hour.

Each pair answers nine tasks of GLUE's sizes (at most 1,000 examples), from 2, 3 or 5 seeds. Examples come in documents
of 1 to 20, some of which are hard for both models and some of which either model likes. Half of the pairs are equal:
their expected scores are, over documents and seeds. In the other half the challenger is better by one of ``GAINS`` at
every task. A fifth of the equal pairs are judged once more as if each example were independent. At three of the tasks,
champions meet another equal challenger on the same examples in each of the 365 nights of a year, and challengers that
are better by one of ``YEAR_GAINS`` on its first, 30th or last night. Rates with intervals at 95 % are printed and
written to ``artifacts/bench/gate.json``.
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
from plm_core.evaluation.gate_rules import LOOKS, GateRules, MetricRule
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
FEW_RULES = replace(RULES, metrics={name: RULES.metrics[name] for name in ("score", *(f"{t}/score" for t in FEW))})
LOOKED_AT = (1, 30, LOOKS)
YEAR_GAINS = (0.04, 0.06, 0.08, 0.12)
RESAMPLES = 500
"""A twentieth of the gate's: an error rate needs no more. Where p is small, the gate draws more by itself."""
NIGHTLY = 200
"""Those of a night, of which a year has many."""


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


def year(seed):
    """How many challengers of a year that are equal to the champion pass."""
    rng = np.random.default_rng(seed)
    questions = {task: examples(rng, task) for task in FEW}
    champion, *challengers = (
        evidence({task: answers(rng, task, questions[task], 0.0, 3) for task in FEW}) for _ in range(1 + LOOKS)
    )
    return sum(decide(new, champion, FEW_RULES, NIGHTLY, night).passed for night, new in enumerate(challengers))


def passes_on(seed, gain):
    """On which of the nights ``LOOKED_AT`` a challenger that is better by ``gain`` passes."""
    rng = np.random.default_rng(seed)
    questions = {task: examples(rng, task) for task in FEW}
    old, new = (evidence({t: answers(rng, t, questions[t], advantage, 3) for t in FEW}) for advantage in (0.0, gain))
    return [decide(new, old, FEW_RULES, RESAMPLES, night - 1).passed for night in LOOKED_AT]


def rate(work, hits):
    share = float(np.mean(hits))
    interval = wilson(share, len(hits))
    print(f"{work:58} {share:7.1%}   {interval.low:.1%} to {interval.high:.1%} of {len(hits):,}")
    return {"work": work, "rate": share, "low": interval.low, "high": interval.high, "pairs": len(hits)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=600, help="equal ones, and as many that differ")
    parser.add_argument("--years", type=int, default=150, help="of nights with equal challengers")
    parser.add_argument("--processes", type=int, help="as many as there are cores, if not given")
    arguments = parser.parse_args()
    pairs = arguments.pairs
    gains = [0.0] * pairs + [GAINS[i % len(GAINS)] for i in range(pairs)]
    better_by = [gain for gain in YEAR_GAINS for _ in range(max(10, pairs // 6))]
    with ProcessPoolExecutor(arguments.processes) as pool:
        outcomes = list(zip(gains, pool.map(judged, range(len(gains)), gains, chunksize=5), strict=True))
        years = list(pool.map(year, range(arguments.years)))
        passing = np.array(list(pool.map(passes_on, range(len(better_by)), better_by)))
    rows = []
    for column, how in ((0, ""), (2, ", documents not known")):
        verdicts = [(gain, outcome[column : column + 2]) for gain, outcome in outcomes if len(outcome) > column]
        rows.append(rate(f"equal{how}: promoted", [passed for gain, (passed, _) in verdicts if not gain]))
        rows.append(rate(f"equal{how}: a task called worse", [worse for gain, (_, worse) in verdicts if not gain]))
    for better in GAINS:
        rows.append(
            rate(f"better by {better:g}: promoted", [outcome[0] for gain, outcome in outcomes if gain == better])
        )
    rows.append(rate(f"{LOOKS} nights of equal challengers: any promoted", [passed > 0 for passed in years]))
    for night, passed in zip(LOOKED_AT, passing.T, strict=True):
        by_gain = [passed[np.equal(better_by, gain)] for gain in YEAR_GAINS]
        for gain, hits in zip(YEAR_GAINS, by_gain, strict=True):
            rows.append(rate(f"better by {gain:g} on night {night}: promoted", hits))
        half = float(np.interp(0.5, [0.0, *map(np.mean, by_gain)], [0.0, *YEAR_GAINS]))
        print(f"promoted half of the time on night {night}: a gain of about {half:.3f}")
        rows.append({"work": f"gain promoted half of the time on night {night}", "gain": half})
    atomic_text(OUT, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
