"""The decision record: all that is known of challenger and champion, for the people who decide.

MLflow shows it as the description of the version that was judged. Used by the command gate.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from plm_core.config import UserError
from plm_core.evaluation import significance
from plm_core.evaluation.evidence import LIKELIHOOD
from plm_core.evaluation.promotion_gate import Evidence
from plm_core.templates import plain, render
from tasks.reporting.html_page import page
from tasks.reporting.scores import FEWEST, RESAMPLES, score_of, sliced

LIMIT = 5_000
"""Characters of a description that MLflow's databases keep; SQLite keeps more, but a registry may move."""
LETTERS = 120
PROMPTS = 2
FILLS = 3
UNKNOWN = "not known"
LINK = re.compile(r"\[([^]]*)\]\(#[^)]*\)")
"""A link inside MLflow's UI."""


class Side(TypedDict):
    """A version as the registry knows it; without a run, which somebody may have deleted, little is known."""

    version: str
    run: str
    """Its id; empty if there is none."""
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    samples: Sequence[Mapping[str, Any]]
    """As stage evaluate writes them."""


def record(
    decision: Mapping[str, Any], evidence: Sequence[Evidence], sides: Sequence[Side], experiment: str, level: str
) -> str:
    """The record as Markdown.

    ``decision`` is the gate's decision, with its rows as they are written. ``evidence`` and ``sides`` are those of the
    champion, if there is one, and of the challenger. ``experiment`` is the id of their runs' experiment, ``level`` the
    level of the gate's intervals.
    """
    column = "difference" if len(sides) == 2 else "challenger"
    rows = [row for row in decision["table"] if row.get(column) is not None]
    unjudged: dict[str, list[str]] = {}
    for row in decision["table"]:
        # A likelihood of other papers' models, which neither side has, is not worth a note.
        nobodys = row["verdict"] == "not measured" and {row.get("champion", 0), row.get("challenger")} == {None}
        if (row not in rows or row["note"]) and not nobodys:
            unjudged.setdefault(row["note"] or row["verdict"], []).append(row["metric"])
    notes = [f"{', '.join(names)}: {why}" for why, names in unjudged.items()]
    notes += [] if any(side["samples"] for side in sides) else ["samples: none are kept"]
    facts = _facts(evidence, sides)
    roles = ["champion", "challenger"][-len(sides) :]
    samples = []
    for number, sample in ((i, sample) for i, side in enumerate(sides) for sample in side["samples"][:PROMPTS]):
        if "cloze" in sample:
            fills = (f"{word.removeprefix('▁')} ({share:.0%})" for word, share in sample["fills"][:FILLS])
            samples.append({"side": number, "given": _short(sample["cloze"]), "text": ", ".join(fills)})
        else:
            written = _short(sample["continuation"])
            samples.append({"side": number, "given": _short(sample["prompt"]), "text": written})
    return render(
        "tasks/reporting/templates/record.md.j2",
        decision=decision,
        rows=rows,
        sides=sides,
        roles=roles,
        titles=[f"{role}, version {side['version']}" for role, side in zip(roles, sides, strict=True)],
        facts={name: cells for name, cells in facts.items() if set(cells) != {UNKNOWN}},
        unknown=[name for name, cells in facts.items() if set(cells) == {UNKNOWN}],
        slices=list(_slices(evidence, notes)),
        notes=notes,
        samples=samples,
        experiment=experiment,
        fewest=FEWEST,
        level=level,
    )


def shortened(record: str) -> str:
    """As many whole lines as fit into a description, and a note on the rest."""
    if len(record) <= LIMIT:
        return record
    end = f"\nCut here: MLflow keeps {LIMIT:,} characters. All of it is in `decision.html` of this version's run.\n"
    return record[: record.rindex("\n", 0, LIMIT - len(end)) + 1] + end


def as_page(record: str) -> str:
    """The whole record as HTML, without links: they do not work in the frame in which MLflow shows a page."""
    return page("tasks/reporting/templates/decision.html.j2", LINK.sub(r"\1", record))


def _facts(evidence: Sequence[Evidence], sides: Sequence[Side]) -> dict[str, list[str]]:
    """What is known of each side, by label."""

    def tag(name: str) -> list[str]:
        return [plain(side["tags"].get(name, UNKNOWN)) for side in sides]

    def metric(name: str, form: str, unit: str = "", divisor: float = 1) -> list[str]:
        values = [side["metrics"].get(name, math.nan) for side in sides]
        return [UNKNOWN if math.isnan(value) else f"{value / divisor:{form}}{unit}" for value in values]

    tables = [held.tables.get(LIKELIHOOD) for held in evidence]
    ancestors = [side["tags"].get("checkpoint.ancestor", "")[:10] or "nothing" for side in sides]
    return {
        "model": tag("plm.model"),
        "architecture": tag("plm.architecture"),
        "objective": tag("plm.objective"),
        "likelihood": [
            f"{table.value:.4f} {plain(table.metric)}" if table and not math.isnan(table.value) else UNKNOWN
            for table in tables
        ],
        **({"carried on from": ancestors} if {*ancestors} != {"nothing"} else {}),
        "parameters": metric("parameters", ",.0f"),
        "tokens read": metric("positions", ",.0f"),
        "pretrained in": metric("seconds", ",.1f", " minutes", 60),
        "device": [plain(side["params"].get("device", UNKNOWN)) for side in sides],
        "energy": metric("joules", ",.1f", " kJ", 1000),
        "cost": metric("cost", ",.4f"),
        "data": tag("plm.data"),
        "commit": [commit[:10] for commit in tag("git.commit")],
    }


def _slices(evidence: Sequence[Evidence], notes: list[str]) -> Iterator[dict[str, Any]]:
    """Each slice of each task with its scores, and with the difference of two sides; gaps are added to the notes."""
    for name in evidence[-1].tables:
        tables = [side.tables[name] for side in evidence if name in side.tables]
        if name == LIKELIHOOD or len(tables) < len(evidence):
            continue
        try:
            slices = sliced(name, tables)
        except UserError as error:
            notes.append(f"{name} by slice: {error}")
            continue
        if slices is None and not tables[0].of_pairs:
            notes.append(f"{name} by slice: nothing is known of its examples, because stage slices has not run")
        for parts in slices or ():
            title = f"{name}, {parts[0].kind}: {parts[0].name}"
            if not parts[0].scored:
                notes.append(f"{title}: all labels are equal")
            elif (size := int(parts[0].members.sum())) >= FEWEST:
                row = {"name": title, "examples": size, "scores": (scores := [score_of(part) for part in parts])}
                if len(parts) > 1:
                    results = [part.results for part in parts]
                    theirs, ours = significance.bootstrap(results, significance.generator(), RESAMPLES)
                    interval = significance.interval(ours[""] - theirs[""])
                    row |= {"difference": scores[1] - scores[0], "interval": interval}
                yield row


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 4]} ..."
