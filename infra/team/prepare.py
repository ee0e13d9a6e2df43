"""Creates passwords and settings for a team's servers in a folder. `make team` and `infra/compose.yaml` use it.

The files in ``settings/`` are templates of the settings of each server and each person's shell; each ``$name`` is
filled in here. No password has a default, and a second call keeps those of the first. Only the owner can read them.
"""

import argparse
import json
import os
import secrets
import sys
from pathlib import Path
from string import Template

SETTINGS = Path(__file__).parent / "settings"
PASSWORDS = (
    *("admin", "writer", "reader"),  # people; the last two have S3 accounts too
    *("prefect", "flask", "s3_mlflow", "s3_writer", "s3_reader"),
    *("database_mlflow", "database_auth", "database_prefect"),
)
PORTS = (
    *("mlflow", "prefect", "s3"),  # behind TLS, for everybody; the others are on loopback
    *("mlflow_inside", "prefect_inside", "s3_inside", "postgres"),
    *("s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc"),
)
TRUST = """\
MLFLOW_TRACKING_SERVER_CERT_PATH={0}
PREFECT_API_SSL_CERT_FILE={0}
AWS_CA_BUNDLE={0}
"""
"""A person's settings for certificates that no public authority has signed."""


def private(path: Path, text: str) -> None:
    """Write a file that nobody else can read at any moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def passwords(folder: Path) -> dict[str, str]:
    """Return all passwords: the existing ones, and new ones for the rest."""
    path = folder / "secrets/passwords.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    # Hexadecimal digits need no escaping in a URL, SQL, JSON, an ini file and a shell.
    by_name = {name: before.get(name) or secrets.token_hex(24) for name in PASSWORDS}
    private(path, json.dumps(by_name, indent=2) + "\n")
    return by_name


def prepare(folder: Path, host: str, port: int, tls: str) -> None:
    """Fill in the settings for servers that people reach as ``host`` from ``port`` on.

    ``tls`` is the argument of Caddy's directive: ``internal`` for its own certificates, an e-mail address for those of
    Let's Encrypt, or the paths of a certificate and its key.
    """
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    for name in ("caddy", "logs", "s3"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    own = folder / "caddy/pki/authorities/local/root.crt"
    values = {
        **{f"{name}_password": word for name, word in passwords(folder).items()},
        **{f"{name}_port": port + number for number, name in enumerate(PORTS)},
        "team": folder,
        "host": host,
        "tls": tls,
        "trust": TRUST.format(own) if tls == "internal" else "",
    }
    for template in SETTINGS.rglob("*.*"):
        private(folder / template.relative_to(SETTINGS), Template(template.read_text()).substitute(values))


def refused(folder: Path) -> str | None:
    """Return why servers cannot have their files there; None if they can."""
    if any(character.isspace() for character in str(folder)):
        return "contains whitespace, at which a shell would split it; expected a path without"
    closed = next((parent for parent in folder.parents if parent.exists() and not parent.stat().st_mode & 0o001), None)
    if os.geteuid() == 0 and closed:
        return f"PostgreSQL, which never runs as root, may not enter {closed}; expected another folder or another user"
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="localhost", help="the name by which people reach the servers")
    parser.add_argument("--port", type=int, default=7700, help="the first of the ports")
    parser.add_argument("--tls", default="internal", help="internal, an e-mail address, or 'certificate.pem key.pem'")
    given = parser.parse_args()
    if why := refused(given.folder.absolute()):
        sys.exit(f"error: {given.folder}: {why}")
    prepare(given.folder.absolute(), given.host, given.port, given.tls)
