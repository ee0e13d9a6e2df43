"""Waits until a team's servers answer as people reach them, and says what to do next. `supervisord.conf` starts it."""

import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

WAIT_S = 600.0
"""How long they may take: half a minute where nothing else runs."""


def settings(folder: Path, person: str) -> dict[str, str]:
    """What a person's shell is told."""
    lines = (folder / f"people/{person}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def answers(url: str, authority: str | None) -> bool:
    """Whether a server answers there, be it that it wants a password."""
    try:
        trusted = ssl.create_default_context(cafile=authority)
        with urllib.request.urlopen(url, timeout=5, context=trusted):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except OSError:  # also before the proxy has made its certificates
        return False


def main(folder: Path) -> int:
    """Wait for the servers of a team's folder; returns an exit status."""
    known = settings(folder, "writer")
    servers = {
        "mlflow": f"{known['MLFLOW_TRACKING_URI']}/health",
        "prefect": f"{known['PREFECT_API_URL']}/health",
        "s3": known["AWS_ENDPOINT_URL"],
    }
    over = time.monotonic() + WAIT_S
    for name, url in servers.items():
        while not answers(url, known.get("AWS_CA_BUNDLE")):
            if time.monotonic() > over:
                print(f"error: {url} does not answer; {folder}/logs/{name}.log and proxy.log say why", flush=True)
                return 1
            time.sleep(0.5)
    shown = [known["MLFLOW_TRACKING_URI"], known["PREFECT_API_URL"].removesuffix("/api"), known["AWS_ENDPOINT_URL"]]
    print("the team's servers answer: MLflow {}, Prefect {}, S3 {}".format(*shown))
    print(f"before `plm run`: set -a; . {folder}/people/writer.env; set +a", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
