"""The ledger: every decision on a champion is a run of the experiment ``<experiment>-decisions``. For the registry.

MLflow keeps no history of aliases (mlflow#2169). A decision is recorded completely before anything moves, and its run
ends only when everything has moved: a decision that a killed process leaves RUNNING is completed by the next process.
"""

import contextlib
import getpass
import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.registry.mlflow_client import pages, skip_if_deleted

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Action = Literal["promoted", "refused", "promoted by hand", "rolled back to", "moved in the UI"]
ROLLED_BACK: Action = "rolled back to"
FILE = "decision.json"
MODEL_TAG = "plm.registered_model"
"""Names the registered model that a run of the ledger is about; set when the run is created."""
TABLE_TAG = "gate.table"
"""What the gate compared, as JSON."""


@dataclass(frozen=True)
class Decision:
    """What was decided about a version."""

    action: Action
    version: str
    """The number of the version that it is about."""
    previous: str
    """The number of the previous champion; empty for none."""
    reasons: list[str]
    details: Mapping[str, Any] | None = None
    """What the gate decided and saw; None if it was not asked."""
    who: str = field(default_factory=lambda: os.environ.get("MLFLOW_TRACKING_USERNAME") or getpass.getuser())

    @property
    def moves(self) -> bool:
        """Whether the version becomes the champion."""
        return self.action != "refused"

    @property
    def gate(self) -> str:
        """The verdict on the version: passed, refused or overruled; empty for a rollback."""
        if self.action == ROLLED_BACK:
            return ""
        passed = self.details and self.details["passed"]
        return "refused" if not self.moves else "passed" if passed else "overruled"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its verdict that the version gets; the table only if the gate was asked."""
        if not self.gate:
            return {}
        seen = {name: self.details[name] for name in ("champion", "table")} if self.details else None
        table = {TABLE_TAG: json.dumps(seen)} if seen else {}
        return {**table, "gate.reasons": "; ".join(self.reasons), "gate": self.gate}

    def __str__(self) -> str:
        version = f"version {self.version}"
        return f"{self.action} {version}" if self.action == ROLLED_BACK else f"{version} {self.action}"


class Ledger:
    """The decisions on one registered model."""

    def __init__(self, client: "MlflowClient", experiment: str, model: str) -> None:
        self._client = client
        self._experiment = experiment
        self._model = model

    def begin(self, decision: Decision) -> str:
        """Record a decision; returns its run's id. From now on it will be completed, by this process or another.

        A run without its file belongs to a process that was killed before anything had moved.
        """
        from mlflow.entities import Param

        # People see the parameters in MLflow, and code that goes through all decisions reads only these.
        entry = {
            "number": str(len(self.runs()) + 1),
            "action": decision.action,
            "version": decision.version,
            "previous": decision.previous,
            "who": decision.who,
            "host": socket.gethostname(),
            "reasons": "; ".join(decision.reasons)[:6000],
        }
        tags = {MODEL_TAG: self._model, "plm.stage": "decision"}
        name = str(decision).replace("version ", "")
        run = self._client.create_run(self._experiment, tags=tags, run_name=name).info.run_id
        self._client.log_batch(run, params=[Param(key, value) for key, value in entry.items()], synchronous=True)
        content = json.dumps({"model": self._model, **asdict(decision)}, indent=2) + "\n"
        self._client.log_text(run, content, FILE)
        return run

    def end(self, run: str, carried_out: bool) -> None:
        """Close a decision that has been carried out, or one that is discarded."""
        self._client.set_terminated(run, "FINISHED" if carried_out else "KILLED")

    def unfinished(self) -> list[tuple[str, Decision | None]]:
        """The decisions that nobody has completed, by their runs' ids; None for one that was not fully recorded."""
        return [(run.info.run_id, self._read(run)) for run in self.runs() if run.info.status == "RUNNING"]

    def champions(self) -> list[str]:
        """The numbers of past champions and the current one, the oldest first, without those rolled back."""
        # Going back to a former champion undoes what came after it.
        stack: list[str] = []
        for run in self._finished():
            action, number = run.data.params["action"], run.data.params["version"]
            if action in (ROLLED_BACK, "moved in the UI") and number in stack:
                del stack[len(stack) - stack[::-1].index(number) :]
            elif action != "refused":
                stack.append(number)
        return stack

    def earlier_challengers(self, champion: str, version: str) -> int:
        """How often another version was judged against a champion, or this one against another champion; judged again
        against the same one, it does not count again."""
        entries = [run.data.params for run in self._finished()]
        pairs = {(e["version"], e["previous"]) for e in entries if e["previous"] and e["action"] != ROLLED_BACK}
        return len(pairs - {(version, champion)})

    def tags_of(self, version: str) -> dict[str, str]:
        """The tags that completed decisions have given a version; later ones win."""
        decisions = [self._read(run) for run in self._finished() if run.data.params["version"] == version]
        return {key: value for decision in decisions if decision for key, value in decision.tags.items()}

    def runs(self) -> list["Run"]:
        """The runs in the order of the decisions, not of time: the clock may have been set back in between."""
        about = f"tags.`{MODEL_TAG}` = '{self._model}'"
        runs = pages(lambda page: self._client.search_runs([self._experiment], about, page_token=page))
        return sorted(runs, key=lambda run: (int(run.data.params.get("number", 0)), run.info.start_time))

    def _finished(self) -> list["Run"]:
        return [run for run in self.runs() if run.info.status == "FINISHED"]

    def _read(self, run: "Run") -> Decision | None:
        with tempfile.TemporaryDirectory() as folder, skip_if_deleted(), contextlib.suppress(ValueError, KeyError):
            path = self._client.download_artifacts(run.info.run_id, FILE, folder)
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
            return Decision(**{name: fields[name] for name in Decision.__dataclass_fields__})
        return None
