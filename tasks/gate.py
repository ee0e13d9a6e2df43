"""The gate as a process: ``python -m tasks.gate --challenger DIR [--champion DIR] --out decision.json``.

``flows/promotion.py`` runs it before it moves the alias ``champion``. It reads the section ``promotion`` of
``params.yaml`` in the working directory and two evidence folders, and writes the decision. Exit status 0 whether
the challenger passed or not (the file says), 2 when a parameter or the evidence cannot be used.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.evaluation.evidence import SCORE, task_files
from plm_core.evaluation.gate import Decision, Evidence, decide, read_evidence
from plm_core.evaluation.rules import EVERY_TASK, GateRules, source
from plm_core.files import atomic_text
from tasks.settings import params

LEFT_OUT = "not measured"
"""The verdict on a task that only the champion has."""


def _table(
    decision: Decision, challenger: Evidence, folder: Path, champion: Path | None, rules: GateRules
) -> list[dict[str, Any]]:
    """The decision's rows, with what was allowed and how many examples there were, and the tasks that were left out."""
    rows = []
    for row in decision.table:
        table = None if row.metric == EVERY_TASK else challenger.tables[source(row.metric)]
        examples = len(table.examples) if table and row.difference is not None else None
        rows.append(asdict(row) | {"tolerance": rules.metrics[row.metric].tolerance, "examples": examples})
    missing = task_files(champion).keys() - task_files(folder) if champion else ()
    note = "the challenger was not measured on it"
    return [*rows, *({"metric": f"{task}/{SCORE}", "verdict": LEFT_OUT, "note": note} for task in sorted(missing))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, write the decision, print its reasons."""
    parser = argparse.ArgumentParser(prog="python -m tasks.gate", description="Judge a challenger by its evidence.")
    parser.add_argument("--challenger", type=Path, required=True, help="its evidence folder")
    parser.add_argument("--champion", type=Path, help="the champion's evidence folder; leave out when there is none")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write the decision to")
    options = parser.parse_args(arguments)
    try:
        rules = params.without("promotion", "registered_model", GateRules).for_evidence(options.challenger)
        challenger = read_evidence(options.challenger, rules)
        champion = read_evidence(options.champion, rules, partial=True) if options.champion else None
        decision = decide(challenger, champion, rules)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    told = asdict(decision) | {"table": _table(decision, challenger, options.challenger, options.champion, rules)}
    atomic_text(options.out, json.dumps(told, indent=2, allow_nan=False) + "\n")
    print("passed" if decision.passed else "refused", *decision.reasons, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
