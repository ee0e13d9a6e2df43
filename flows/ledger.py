"""The ledger: every decision on a champion, as a run of the experiment ``<experiment>-decisions``. For the registry.

MLflow keeps no history of aliases (mlflow#2169). A decision is written down whole before anything moves, and its run
ends only when all has moved: what a killed process leaves RUNNING is carried through by the next one.
"""

import getpass
import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.store import GONE, pages

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Action = Literal["promoted", "refused", "promoted by hand", "rolled back", "moved in the UI"]

FILE = "decision.json"
MODEL_TAG = "plm.registered_model"
"""Names the registered model that a run of the ledger is about, from the moment at which the run exists."""


@dataclass(frozen=True)
class Decision:
    """What was decided about a version."""

    action: Action
    version: str
    """The number of the version that it is about."""
    previous: str
    """The number of the champion before; empty for none."""
    reasons: list[str]
    tags: dict[str, str] = field(default_factory=dict)
    """What the version is tagged with, the verdict last."""
    details: Mapping[str, Any] | None = None
    """What the gate saw."""
    who: str = field(default_factory=lambda: os.environ.get("MLFLOW_TRACKING_USERNAME") or getpass.getuser())

    @property
    def moves(self) -> bool:
        """Whether the version becomes the champion."""
        return self.action != "refused"


class Ledger:
    """The decisions on one registered model."""

    def __init__(self, client: "MlflowClient", experiment: str, model: str) -> None:
        self._client = client
        self._experiment = experiment
        self._model = model

    def begin(self, decision: Decision) -> str:
        """Write a decision down; returns its run's id. From now on it is carried through, by this process or another.

        A run without its file was killed before that, and nothing had moved.
        """
        from mlflow.entities import Param

        entry = {
            "number": str(len(self._runs()) + 1),
            "action": decision.action,
            "version": decision.version,
            "previous": decision.previous,
            "who": decision.who,
            "host": socket.gethostname(),
            "reasons": "; ".join(decision.reasons)[:6000],
        }
        name = f"{decision.version} {decision.action}"
        tags = {MODEL_TAG: self._model, "plm.stage": "decision"}
        run = self._client.create_run(self._experiment, tags=tags, run_name=name).info.run_id
        self._client.log_batch(run, params=[Param(key, value) for key, value in entry.items()], synchronous=True)
        with tempfile.TemporaryDirectory() as folder:
            content = json.dumps({"model": self._model, **asdict(decision)}, indent=2) + "\n"
            (Path(folder) / FILE).write_text(content, encoding="utf-8")
            self._client.log_artifacts(run, folder)
        return run

    def finish(self, run: str) -> None:
        """All that was decided is done."""
        self._client.set_terminated(run, "FINISHED")

    def take_back(self, run: str) -> None:
        """Nothing of it is done, nor will be."""
        self._client.set_terminated(run, "KILLED")

    def unfinished(self) -> list[tuple[str, Decision | None]]:
        """The decisions that nobody has carried through, by their runs' ids; None for one that was not written down."""
        return [(run.info.run_id, self._read(run)) for run in self._runs() if run.info.status == "RUNNING"]

    def champions(self) -> list[str]:
        """The numbers of past champions and the present one, the oldest first, without those rolled back."""
        stack: list[str] = []
        for run in self._runs():
            action = run.data.params.get("action")
            number = run.data.params.get("version", "")
            if run.info.status != "FINISHED" or action == "refused":
                continue
            if action in ("rolled back", "moved in the UI") and number in stack:
                while stack[-1] != number:
                    stack.pop()
            else:
                stack.append(number)
        return stack

    def asked(self, champion: str, version: str) -> int:
        """How many other versions the gate has refused beside this champion."""
        refused = {
            run.data.params["version"]
            for run in self._runs()
            if run.info.status == "FINISHED"
            and run.data.params.get("action") == "refused"
            and run.data.params.get("previous") == champion
        }
        return len(refused - {version})

    def tags_of(self, version: str) -> dict[str, str]:
        """What the decisions that were carried through have tagged a version with; later ones win."""
        about = [run for run in self._runs() if run.data.params.get("version") == version]
        found = [self._read(run) for run in about if run.info.status == "FINISHED"]
        return {key: value for decision in found if decision for key, value in decision.tags.items()}

    def _runs(self) -> list["Run"]:
        """In the order of the decisions: the clock may have been set back between two of them."""
        about = f"tags.`{MODEL_TAG}` = '{self._model}'"
        runs = pages(lambda page: self._client.search_runs([self._experiment], about, page_token=page))
        return sorted(runs, key=lambda run: (int(run.data.params.get("number", 0)), run.info.start_time))

    def _read(self, run: "Run") -> Decision | None:
        from mlflow.exceptions import MlflowException

        with tempfile.TemporaryDirectory() as folder:
            try:
                path = self._client.download_artifacts(run.info.run_id, FILE, folder)
                found = json.loads(Path(path).read_text(encoding="utf-8"))
                return Decision(**{name: found[name] for name in Decision.__dataclass_fields__})
            except (FileNotFoundError, ValueError, KeyError):
                return None
            except MlflowException as error:
                if error.error_code not in GONE:
                    raise
                return None
