"""The `plm` command as a process: what it imports, what it prints, how it ends."""

import json
import subprocess
import sys

import pytest

COMMANDS = ["run", "deploy", "status", "compare", "promote", "rollback", "generate", "ui"]
HEAVY = ["prefect", "dvc", "mlflow", "torch", "rich", "pandas"]


def plm(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def project(toy):
    return toy(
        "stages:\n"
        "  first:\n    cmd: echo a > a\n    outs: [a]\n"
        "  second:\n    cmd: cat a > b\n    deps: [a]\n    outs: [b]\n",
        params_yaml=(
            "tracking: {uri: 'sqlite:///store/mlflow.db', experiment: plm}\n"
            "promotion:\n  registered_model: plm\n  primary: bits_per_byte\n  min_gain: 0.0\n"
            "  metrics:\n    bits_per_byte: {direction: lower, tolerance: 0.0}\n"
        ),
    )


def test_help_of_every_command_imports_nothing_heavy():
    code = (
        "import sys\nfrom flows import cli\n"
        "try:\n    cli.main([*sys.argv[1:], '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    for command in [[], *([name] for name in COMMANDS)]:
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", command
        assert "usage: plm" in done.stdout


def test_status_as_json_names_each_stage_with_its_reasons_and_the_registry(project):
    done = plm(project, "status", "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert [(stage["name"], stage["up_to_date"]) for stage in status["stages"]] == [("first", False), ("second", False)]
    assert all(stage["reasons"] for stage in status["stages"])
    assert status["registry"]["model"] == "plm"
    assert status["registry"]["versions"] == []


def test_outside_a_project_the_error_says_where_to_go(tmp_path):
    done = plm(tmp_path, "status")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "dvc.yaml" in done.stderr


def test_a_schedule_without_a_server_says_how_to_get_one(project):
    done = plm(project, "deploy", "--cron", "0 3 * * *")
    assert done.returncode == 2
    assert "PREFECT_API_URL" in done.stderr
    assert "prefect server start" in done.stderr


def test_a_broken_setting_names_the_parameter(project):
    (project / "params.yaml").write_text("tracking: {uri: 7, experiment: plm}\npromotion: {}\n")
    done = plm(project, "status")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "tracking.uri" in done.stderr or "promotion" in done.stderr


def test_an_unknown_version_names_those_there_are(project):
    done = plm(project, "promote", "7", "--reason", "because")
    assert done.returncode == 2
    assert "7" in done.stderr
