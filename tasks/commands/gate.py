"""The gate as a process: ``python -m tasks.commands.gate --challenger DIR [--champion DIR] --out decision.json``.

It reads the section ``promotion`` of ``params.yaml`` in the working directory and two evidence folders, and writes the
decision. Exit status 0 whether or not the challenger passed (the file says so), 2 if a parameter or the evidence cannot
be used.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from plm_core.evaluation.evidence import LIKELIHOOD, SCORE, read_likelihood, task_files
from plm_core.evaluation.gate_rules import LOOKS, GateRules
from plm_core.evaluation.promotion_gate import also_against, also_on_old_text, decide, read_evidence
from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from tasks.parameters import stage_parameters
from tasks.reporting.decision_record import as_page, record, shortened
from tasks.reporting.worth import WORTH
from tasks.runtime.stage import main

PICTURE = "![all models, from the report](get-artifact?path={picture}&run_uuid={run})\n\n"
"""The report's first picture as MLflow's pages show it, but not the frames in which they show other pages."""


def judge(
    challenger: Annotated[Path, Option(help="Judge the model with this evidence folder.")],
    out: Annotated[Path, Option(help="Write the decision into this JSON file.")],
    champion: Annotated[Path | None, Option(help="Compare it with the champion in this evidence folder.")] = None,
    earlier_challengers: Annotated[
        int, Option(min=0, help="This many others have already been compared with a champion.")
    ] = 0,
    earlier: Annotated[
        tuple[str, Path] | None,
        Option(help="Compare the likelihood with this earlier version and evidence folder too."),
    ] = None,
    registered: Annotated[
        Path | None, Option(help="Compare both on the old text too: the champion's evidence when it was registered.")
    ] = None,
    about: Annotated[Path | None, Option(help="Write the decision record too, with the facts in this file.")] = None,
) -> None:
    """Judge a challenger by its evidence, write the decision, and print its reasons.

    Raises:
        UserError: a parameter or the evidence cannot be used.
    """
    rules = stage_parameters.without_parameter("promotion", "registered_model", GateRules).for_evidence(
        challenger, champion
    )
    evidence = read_evidence(challenger, rules)
    other = read_evidence(champion, rules, partial=True) if champion else None
    decision = decide(evidence, other, rules, earlier_challengers=earlier_challengers)
    if earlier and decision.table:
        before = read_evidence(earlier[1], rules, partial=True)
        decision = also_against(decision, evidence, earlier[0], before, rules)
    if registered and other and decision.table and (registered / LIKELIHOOD).is_file():
        decision = also_on_old_text(decision, evidence, other, read_likelihood(registered / LIKELIHOOD), rules)
    if champion and decision.table:
        number = earlier_challengers + 1
        spread = f"promotion.alpha = {rules.alpha:g} is spread over the first {LOOKS} challengers in this registry"
        note = f"{spread}: number {number} passes at a level of {rules.level(number):.2g}"
        decision = replace(decision, reasons=[*decision.reasons, note])
    rows: list[dict[str, Any]] = [asdict(row) for row in decision.table]
    missing = task_files(champion).keys() - task_files(challenger) if champion else ()
    note = "the challenger was not measured on it"
    rows += ({"metric": f"{task}/{SCORE}", "verdict": "not measured", "note": note} for task in sorted(missing))
    result = asdict(decision) | {"table": rows}
    if about and decision.table:  # it is empty while the examples differ
        facts = json.loads(about.read_text(encoding="utf-8"))
        sides = [side for side in (other, evidence) if side]
        worth = paths.REPORT / WORTH.format(facts["sides"][-1]["tags"].get("plm.model", ""))
        result["worth"] = worth.read_text(encoding="utf-8") if worth.is_file() else ""
        picture = PICTURE.format(**facts["sides"][-1]) if facts["sides"][-1].get("picture") else ""
        seen = result | {"worth": picture + result["worth"]}
        text = record(seen, sides, facts["sides"], facts["experiment"], f"{100 - 100 * rules.alpha:.4g}%")
        result |= {"description": shortened(text), "page": as_page(text.replace(picture, ""))}
    atomic_text(out, json.dumps(result, indent=2, allow_nan=False) + "\n")
    print("passed" if decision.passed else "refused", *decision.reasons, sep="\n  ")


if __name__ == "__main__":
    main(judge)
