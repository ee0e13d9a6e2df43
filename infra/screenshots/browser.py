"""A headless Chromium, driven by its DevTools protocol: pages with scripts, as a person sees them.

``take.py`` takes screenshots with it; ``test_mlflow_pages.py`` and ``test_report.py`` check pages.
"""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""None if there is no Chromium."""
LONGEST_S = 60.0
"""How long a page may take to show the expected texts."""

DRAWN_S = 3.0
"""How long a page continues to draw after its texts have appeared."""


class Browser:
    """One page of one browser. A context manager: Chromium ends with the block."""

    def __init__(self, width: int = 1500, height: int = 1150) -> None:
        assert BINARY, "no Chromium on this machine"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [BINARY, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command += [f"--window-size={width},{height}", "--remote-debugging-port=0"]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._profile.name}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stderr
        line = ""
        while not (match := re.search(r"ws://\S+", line)):
            line = self._process.stderr.readline()
            assert line, "Chromium ended before it named its address"
        self._connection = connect(match[0], max_size=None)
        self._session = ""
        self.events: list[dict[str, Any]] = []
        """What a page that is watched loads, prints and fails at, as the protocol has it."""
        (target,) = [info for info in self._ask("Target.getTargets")["targetInfos"] if info["type"] == "page"]
        attached = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]

    def open(self, address: str, *shown: str) -> None:
        """Go to an address and wait until the page shows all of these texts."""
        self._ask("Page.navigate", url="about:blank")
        self._ask("Page.navigate", url=address)
        self.wait(*shown)

    def wait(self, *shown: str) -> None:
        """Wait until the page shows all of these texts.

        Raises:
            TimeoutError: it does not show them in time.
        """
        end = time.monotonic() + LONGEST_S
        while missing := [text for text in shown if text not in self.text()]:
            if time.monotonic() > end:
                raise TimeoutError(f"the page does not show {missing}; it shows:\n{self.text()[:5000]}")
            time.sleep(0.2)

    def text(self) -> str:
        """What the page shows, as text."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def watch(self) -> None:
        """Collect ``events`` from now on."""
        for domain in ("Log", "Network", "Runtime"):
            self._ask(f"{domain}.enable")

    def picture(self, path: Path, width: int, height: int, dark: bool = False) -> None:
        """Write a PNG of what a window of this size shows."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        time.sleep(DRAWN_S)
        taken = self._ask("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(taken["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        session = {"sessionId": self._session} if self._session else {}
        self._connection.send(json.dumps({"id": 1, "method": method, "params": params} | session))
        while True:
            answer = json.loads(self._connection.recv(LONGEST_S))
            if answer.get("id") == 1:
                return dict(answer["result"])
            self.events.append(answer)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.communicate()
        self._profile.cleanup()
