"""What a trial's training run reports while it runs, and whether to continue it. Used by ``sweep.py``.

Training appends a line of JSON per report to the file that ``PLM_REPORTS`` names (``tasks/runtime/training.py``).
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_S = 1.0
"""The shortest time between two looks at the file."""


class PrunedError(Exception):
    """A trial should end, because others were better at this step."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Watch:
    """Passes on each report once; ``look`` is called with every line that the trial prints."""

    def __init__(self, path: Path, metric: str, step: int, bad: Callable[[int, float], bool]) -> None:
        """``metric`` is ``STAGE/NAME``, ``step`` the last step that is known; ``bad`` says, for a step and a value,
        whether the trial should end."""
        self._path, self._metric, self._step, self._bad = path, metric, step, bad
        self._looked = 0.0

    def look(self) -> None:
        """Read the new reports, if it is time to. Raises PrunedError."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        for step, value in self._reports():
            if step > self._step:  # a training run that was rolled back reports some steps again
                self._step = step
                if self._bad(step, value):
                    raise PrunedError(step)

    def _reports(self) -> Iterator[tuple[int, float]]:
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        for line in text.rpartition("\n")[0].splitlines():
            report = json.loads(line)
            for name, value in report["metrics"].items():
                if f"{report['stage']}/{name}" == self._metric:
                    yield report["step"], value
