"""The systemd units: systemd knows all their settings, and `plm` the commands that they run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from flows.cli import app

UNITS = Path(__file__).parents[3] / "infra/systemd"
TEXTS = {path.name: path.read_text() for path in UNITS.iterdir()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_every_line(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    for program in ("plm", "prefect", "supervisord"):
        (checkout / ".venv/bin" / program).write_text("#!/bin/sh\n")
        (checkout / ".venv/bin" / program).chmod(0o755)
    name = subprocess.check_output(["systemd-escape", "--path", checkout], text=True).strip()
    units = [tmp_path / unit.replace("@", f"@{name}") for unit in TEXTS]
    for unit, text in zip(units, TEXTS.values(), strict=True):
        unit.write_text(text)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    verify = ["systemd-analyze", "verify", "--user", "--man=no", *units]
    assert subprocess.run(verify, capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "/plm " in text])
def test_the_commands_of_the_units_exist(name):
    (line,) = re.findall(r"^ExecStart=%f/.venv/bin/plm (.*)$", TEXTS[name], re.MULTILINE)
    command, *words = line.split()
    click_command = typer.main.get_command(app).commands[command]
    click_command.make_context(command, words, resilient_parsing=False)


@pytest.mark.parametrize("name", [name for name in TEXTS if re.match(r"plm-(server|schedule|team|worker)", name)])
def test_systemd_services_restart_always(name):
    lines = TEXTS[name].splitlines()
    assert {"Restart=always", "StartLimitIntervalSec=0", "WantedBy=default.target"} <= {*lines}
