"""The gate: may a challenger replace the champion? Pure logic on two folders of per-example results.

``tasks/gate.py`` runs it; ``evidence.py`` says what an evidence folder holds, ``rules.py`` what is required. Metrics
are computed from its rows, on the same examples for both sides; no summary is trusted. Models of different papers have
likelihoods of different quantities, which are never compared; their task scores are. A challenger whose likelihood the
champion does not have is also held against the last champion that has it: otherwise, after a change of paper, a worse
model of the first paper could return.

A challenger passes when it is significantly better on the primary: the bootstrap interval of the difference lies above
0, and the permutation test agrees (the first also covers other seeds, the second is exact for few examples). It also
passes when it is cheaper, and the interval's lower end is above -margin (a test of non-inferiority): within the margin
it may even be significantly worse, because that is what a margin allows. No metric may be significantly worse than its
tolerance allows.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.evidence import (
    COST,
    LIKELIHOOD,
    PARAMETERS,
    Table,
    read_cost,
    read_likelihood,
    read_task,
    task_files,
)
from plm_core.evaluation.rules import EVERY_TASK, GateRules, source
from plm_core.evaluation.verdicts import OBJECTIONS, UNJUDGED, Evidence, Row, rows, telling


@dataclass(frozen=True)
class Decision:
    """The gate's decision."""

    passed: bool
    reasons: list[str]
    """The reasons; of a refusal, all of them."""
    table: list[Row]
    examples_differ: list[str] = field(default_factory=list)
    """Files in which the champion's examples are not the challenger's, or that are missing: evaluate both again, then
    decide again. If the documents are the same and only their excerpts differ in length, the decision holds
    nevertheless: another tokenizer's excerpts will never be the same."""
    earlier_differs: list[str] = field(default_factory=list)
    """The same files of the earlier champion."""


def read_evidence(folder: Path, rules: GateRules, partial: bool = False) -> Evidence:
    """Read the evidence that ``rules`` need from ``folder``, without what is only reported; with ``partial``, what
    exists of it.

    Raises:
        UserError: a file is missing or damaged.
    """
    found = {}
    tasks = task_files(folder)
    for name in rules.sources():
        if name == LIKELIHOOD and (folder / name).is_file():
            found[name], _ = read_likelihood(folder / name).parted(rules.reported)
        elif name in tasks:
            found[name], _ = read_task(tasks[name]).parted(rules.reported)
        elif not partial:
            file = name if name == LIKELIHOOD else f"{name}.1.csv"
            needing = ", ".join(metric for metric in rules.metrics if metric != EVERY_TASK and source(metric) == name)
            raise UserError(f"{folder / file}: missing; expected it for promotion.metrics: {needing}")
    cost = read_cost(folder / COST) if (folder / COST).is_file() else {}
    return Evidence(found, cost.get(PARAMETERS))


def decide(
    challenger: Evidence,
    champion: Evidence | None,
    rules: GateRules,
    resamples: int = significance.RESAMPLES,
    asked: int = 0,
) -> Decision:
    """Judge the challenger; without a champion it passes when every metric is a finite number.

    ``asked`` is the number of challengers already judged against this champion: each lowers the level at which the next
    passes, by Bonferroni's correction. Objections to it are judged at ``promotion.alpha``, as for the others.
    Likelihoods that the challenger or the champion does not have are left out. The primary never is, so at least one
    metric has been judged when a challenger passes. If only sets of minimal pairs tell the two apart, a likelihood that
    both have is the primary: it is measured on all of the text, a pair on one sentence.

    Raises:
        UserError: the challenger's evidence lacks what the rules need.
    """
    for name in rules.sources():
        if name not in challenger.tables:
            raise UserError(f"promotion.metrics: the challenger's evidence lacks {name}")
    differ, hopeless = _others(challenger, champion, rules) if champion else ([], False)
    if hopeless:
        reason = f"the champion's evidence holds other examples than the challenger's: {', '.join(differ)}"
        return Decision(passed=False, reasons=[reason], table=[], examples_differ=differ)
    level = rules.alpha / (asked + 1)
    table = rows(challenger, champion, rules, resamples, level)
    primary = _primary(table, challenger, rules)
    against = [_objection(row, rules) for row in table if row.verdict in OBJECTIONS]
    against += [_objection(primary, rules)] if primary.verdict in UNJUDGED else []
    if champion is None:
        reasons = against or ["there is no champion yet, so it becomes the champion"]
        return Decision(not against, reasons, table)
    if primary.interval is None:
        return Decision(False, against, table, differ)
    names = telling(table, rules) if primary.metric == EVERY_TASK else [primary.metric]
    results = [(champion.results(name), challenger.results(name)) for name in names]
    p = significance.permutation(results, significance.generator(), resamples)
    passed, reason, lacking = _on_the_primary(primary, p, (challenger.parameters, champion.parameters), rules, level)
    reason += f"; {primary.note}" if primary.note else ""
    if against or not passed:
        if " is significantly worse: " in reason and primary.verdict in OBJECTIONS:
            against.remove(_objection(primary, rules))  # the reason says so
        return Decision(False, against if passed else [*against, reason], table, differ + lacking)
    return Decision(True, [f"{reason}; no metric is significantly worse than its tolerance allows"], table, differ)


def also_against(
    decision: Decision,
    challenger: Evidence,
    version: str,
    earlier: Evidence,
    rules: GateRules,
    resamples: int = significance.RESAMPLES,
) -> Decision:
    """The decision, refused if the challenger's likelihood is significantly worse than its tolerance allows than that
    of an earlier champion, which is this version; the last row says how it compares.
    """
    name = challenger.tables[LIKELIHOOD].metric
    only = replace(rules, primary=name, metrics={name: rules.metrics[name]})
    differ, hopeless = _others(challenger, earlier, only)
    lost = Row(name, only.metrics[name].direction, None, None, None, "not comparable", "its evidence is of other texts")
    row = lost if hopeless else rows(challenger, earlier, only, resamples, rules.alpha)[0]
    worse = row.verdict == "worse"
    what = f"version {version}, the last champion that has a {name}"
    passed = decision.passed and not worse
    reason = f"{_objection(row, rules) if worse else f'{name}: {row.verdict}'}; compared with {what}"
    reasons = [*(decision.reasons if passed or not decision.passed else []), *([reason] if passed or worse else [])]
    row = replace(row, earlier=version, note=row.note and f"not compared with {what}: {row.note}")
    return replace(decision, passed=passed, reasons=reasons, table=[*decision.table, row], earlier_differs=differ)


def _others(challenger: Evidence, champion: Evidence, rules: GateRules) -> tuple[list[str], bool]:
    """The files in which the champion has other examples, and whether more than the excerpts of documents differs."""
    pairs = {name: (challenger.tables[name], champion.tables.get(name)) for name in rules.sources()}
    other = [name for name, (ours, theirs) in pairs.items() if not _comparable(ours, theirs)]
    files = [file for name in other for file in challenger.tables[name].files or (name,)]
    return files, any(name != LIKELIHOOD or not _same_documents(*pairs[name]) for name in other)


def _primary(table: list[Row], challenger: Evidence, rules: GateRules) -> Row:
    """The row by which a challenger passes."""
    primary = next(row for row in table if row.metric == rules.primary)
    judged = [row for row in table if source(row.metric) == LIKELIHOOD and row.interval]
    tasks = [name for name in telling(table, rules) if not challenger.tables[source(name)].of_pairs]
    return judged[0] if primary.metric == EVERY_TASK and judged and not tasks else primary


def _on_the_primary(
    row: Row, p: float, parameters: tuple[float | None, float | None], rules: GateRules, level: float
) -> tuple[bool, str, list[str]]:
    """Whether the challenger passes by the primary, why or why not, and files without which this cannot be decided."""
    assert row.strict is not None
    low, high = row.gains(row.strict)
    ends = f"{row.strict.low:+.4g} to {row.strict.high:+.4g}"
    found = f"{row.difference:+.4g}, {100 - 100 * level:.4g}% interval {ends}, p = {p:.2g}"
    if low > 0 and p <= level:
        return True, f"{row.metric} is significantly better: {found}", []
    if high < 0 and p <= level:
        verdict = f"{row.metric} is significantly worse: {found}"
    else:
        seen = f"a difference of about {row.strict.half:.2g} could have been detected"
        verdict = f"{row.metric} is not significantly better: {found} ({seen})"
    if low <= -rules.margin:
        doubt = f"it may be worse by more than promotion.margin = {rules.margin:g}"
        return False, f"{verdict}, and {doubt}", []
    ours, theirs = parameters
    if ours is None or theirs is None:
        return False, f"{verdict}, and it is not known whether it is cheaper", [COST]
    costs = f"{ours:,.0f} parameters, the champion's {theirs:,.0f}"
    if ours < theirs:
        within = f"is not worse by more than promotion.margin = {rules.margin:g}: {found}"
        return True, f"{row.metric} {within}, and the model is cheaper: {costs}", []
    return False, f"{verdict}, and the model is not cheaper: {costs}", []


def _objection(row: Row, rules: GateRules) -> str:
    if row.verdict in UNJUDGED:
        return f"{row.metric}: {row.verdict}, and is promotion.primary: {row.note}"
    if row.verdict == "not finite":
        return f"{row.metric}: not a finite number"
    return f"{row.metric}: worse by {-row.gain:.4g}; the tolerance is {rules.metrics[row.metric].tolerance:g}"


def _comparable(challenger: Table, champion: Table | None) -> bool:
    """Whether both have the same examples, or quantities that are not compared on any."""
    return champion is not None and (challenger.examples == champion.examples or challenger.metric != champion.metric)


def _same_documents(challenger: Table, champion: Table | None) -> bool:
    return champion is not None and challenger.documents == champion.documents
