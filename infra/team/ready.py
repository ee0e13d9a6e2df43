"""Waits until a team's servers respond at their public addresses, and says what to do next.

`supervisord.conf` starts it.
"""

import os
import sys
import time
from pathlib import Path

from flows.schedule.prefect_server import answers

WAIT_S = 600.0
"""How long they may take; half a minute on an idle machine."""


def settings(folder: Path, person: str) -> dict[str, str]:
    """Return the settings of a person's shell."""
    lines = (folder / f"people/{person}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def main(folder: Path) -> int:
    """Wait for the servers of a team's folder; returns an exit status."""
    variables = settings(folder, "writer")
    os.environ.update(variables)  # whom to trust
    servers = {
        "mlflow": variables["MLFLOW_TRACKING_URI"],
        "prefect": variables["PREFECT_API_URL"],
        "s3": variables["AWS_ENDPOINT_URL"],
    }
    over = time.monotonic() + WAIT_S
    for name, url in servers.items():
        # MLflow and Prefect have different health pages, and S3 needs a password for its own.
        while not answers(url):
            if time.monotonic() > over:
                print(f"error: {url} does not answer; {folder}/logs/{name}.log and proxy.log say why", flush=True)
                return 1
            time.sleep(0.5)
    shown = [url.removesuffix("/api") for url in servers.values()]
    print("the team's servers answer: MLflow {}, Prefect {}, S3 {}".format(*shown))
    print(f"before `plm run`: set -a; . {folder}/people/writer.env; set +a", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
