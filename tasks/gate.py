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

from plm_core.config import BadInput
from plm_core.evaluation.gate import decide, read_evidence
from plm_core.evaluation.rules import GateRules
from plm_core.files import atomic_text
from tasks.seam import params


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
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    atomic_text(options.out, json.dumps(asdict(decision), indent=2, allow_nan=False) + "\n")
    print("passed" if decision.passed else "refused", *decision.reasons, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
