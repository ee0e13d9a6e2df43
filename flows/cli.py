"""The `plm` command. Everything heavy is imported by the subcommand that needs it: `--help` answers at once."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows import checkpoints, comparing, standing, tokenizers
from plm_core.shared import paths
from plm_core.shared.sampling import add_options, as_arguments

USER_ERROR = 2
"""Exit status for what the user must mend; 1 is for work that failed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, do what it asks, and end with an exit status."""
    given = _parser().parse_args(arguments)
    root = _project()
    from flows.checkout import PipelineError
    from flows.server import ServerError
    from flows.settings import SettingsError
    from flows.stages import GraphError
    from flows.store import RegistryError

    # One terminal, one interpreter: the commands of the environment that `plm` is installed in come first.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        sys.exit(given.command(root, given))
    except (GraphError, PipelineError, RegistryError, ServerError, SettingsError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def run(root: Path, given: argparse.Namespace) -> int:
    """Run what is not up to date, register, and show where things stand."""
    from flows import display, pipeline, timing
    from flows.machine import Machine

    begun = time.monotonic()
    result = pipeline.run(root, force=given.force)
    whole, cores = time.monotonic() - begun, Machine.detect().cores
    timing.keep(root, result, whole, cores)
    display.show_end(result, whole, cores)
    if not result.ok:
        print(f"error: {result.error}", file=sys.stderr)
        return 1
    standing.show(display.console(), standing.registry_status(root))
    print(f"report         {paths.REPORT}/report.html")
    print("MLflow UI      plm ui mlflow    runs, curves, registry")
    print("Prefect UI     plm ui prefect   flow runs, schedules, logs")
    return 0


def init(root: Path, given: argparse.Namespace) -> int:
    """Propose the parameters for a folder of text."""
    command = [sys.executable, "-m", "tasks.init", str(given.folder.resolve())]
    command += ["--yes"] * given.yes + ["--dry-run"] * given.dry_run
    return subprocess.run(command, cwd=root, check=False).returncode


def deploy(root: Path, given: argparse.Namespace) -> int:
    """Serve the flow on a schedule until interrupted."""
    from flows import deploy as deployment

    deployment.serve(root, given.cron, given.name)
    return 0


def status(root: Path, given: argparse.Namespace) -> int:
    """Show, or print as JSON, which stages are up to date and what the registry holds."""
    from flows.graph import Graph

    stages: list[dict[str, Any]] = [
        {"name": name, "up_to_date": not reasons, "reasons": reasons} for name, reasons in Graph(root).status().items()
    ]
    registry = standing.registry_status(root)
    if given.json:
        print(json.dumps({"stages": stages, "registry": registry}, indent=2))
        return 0
    from rich.table import Table

    from flows import display

    console = display.console()
    shown = [stage for stage in stages if given.all or not stage["up_to_date"]]
    if shown:
        table = Table("stage", "state", "why", title="Stages")
        for stage in shown:
            state = "up to date" if stage["up_to_date"] else "to be run"
            table.add_row(stage["name"], state, "; ".join(stage["reasons"]))
        console.print(table)
    console.print(f"stages         {sum(stage['up_to_date'] for stage in stages)} of {len(stages)} up to date")
    standing.show(console, registry, every=given.all)
    return 0


def promote(root: Path, given: argparse.Namespace) -> int:
    """Make a version the champion, if the gate agrees."""
    from flows import promotion

    outcome = promotion.promote(root, given.version, given.reason, force=given.force)
    print(f"version {outcome.version}: {outcome.action}: {'; '.join(outcome.reasons)}")
    return 0 if outcome.action == "promoted" else 1


def rollback(root: Path, given: argparse.Namespace) -> int:
    """Make the champion before this one the champion again."""
    from flows import promotion

    outcome = promotion.rollback(root, given.reason)
    print(f"version {outcome.version} is the champion again: {'; '.join(outcome.reasons)}")
    return 0


def generate(root: Path, given: argparse.Namespace) -> int:
    """Continue prompts with a model of the workspace or of the registry."""
    return checkpoints.run(root, given, "tasks.generate", *as_arguments(vars(given)), "--", *given.prompts)


def attend(root: Path, given: argparse.Namespace) -> int:
    """Draw what each attention head of a model looks at."""
    return checkpoints.run(root, given, "tasks.attend", f"--out={given.out.resolve()}", "--", given.text)


def seen(root: Path, given: argparse.Namespace) -> int:
    """Decode the batch that a model read at a step of its pretraining."""
    command = [sys.executable, "-m", "tasks.seen", given.model, f"--step={given.step}", f"--rows={given.rows}"]
    return subprocess.run(command + ["--json"] * given.json, cwd=root, check=False).returncode


def export(root: Path, given: argparse.Namespace) -> int:
    """Write a model as a folder of Hugging Face transformers."""
    return checkpoints.run(root, given, "tasks.export", "--", str(given.folder.resolve()))


def import_(root: Path, given: argparse.Namespace) -> int:
    """Read a folder of Hugging Face transformers as a checkpoint of the workspace."""
    command = [sys.executable, "-m", "tasks.import_", f"--name={given.name}", "--", str(given.folder.resolve())]
    return subprocess.run(command, cwd=root, check=False).returncode


def ui(root: Path, given: argparse.Namespace) -> int:
    """Serve MLflow's or Prefect's own user interface until interrupted."""
    from flows import settings
    from flows.pipeline import prepare_environment

    prepare_environment()
    if given.which == "prefect":
        port = given.port or 4200
        command = [sys.executable, "-m", "prefect", "server", "start"]
        environment = {"PREFECT_SERVER_API_PORT": str(port)}
    else:
        port = given.port or 5000
        uri = settings.read(root)[0].uri
        if uri.startswith("http"):
            print(f"MLflow runs at {uri} (MLFLOW_TRACKING_URI)")
            return 0
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--port", str(port)]
        command += ["--workers", "1"]
        environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    print(f"{given.which}: http://127.0.0.1:{port}   (Ctrl-C ends it)", flush=True)
    return subprocess.run(command, cwd=root, env={**os.environ, **environment}, check=False).returncode


def _project() -> Path:
    """The folder with `dvc.yaml` at or above the current one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    print(f"error: {here}: no dvc.yaml and params.yaml here or above; run plm in the project's folder", file=sys.stderr)
    sys.exit(USER_ERROR)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plm", description="Continuous pretraining of language models of your own.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function: Any, name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    _add_pipeline(command)
    _add_models(command)
    it = command(ui, "ui", "open the MLflow or the Prefect user interface")
    it.add_argument("which", choices=["mlflow", "prefect"], nargs="?", default="mlflow", help="default: %(default)s")
    it.add_argument("--port", type=int, help="default: 5000 for MLflow, 4200 for Prefect")
    return parser


def _add_pipeline(command: Callable[[Any, str, str], argparse.ArgumentParser]) -> None:
    """The commands that run stages and decide on versions."""
    it = command(init, "init", "look at a folder of text and propose the parameters for it")
    it.add_argument("folder", type=Path, help="with .txt, .jsonl, .csv, .tsv or .parquet files")
    it.add_argument("--yes", action="store_true", help="write them without asking")
    it.add_argument("--dry-run", action="store_true", help="show them only")
    it = command(run, "run", "run the stages that are not up to date, side by side, and register what they made")
    it.add_argument("--force", action="store_true", help="run every stage, up to date or not")
    it = command(deploy, "deploy", "run the pipeline on a schedule, as long as this command lives")
    it.add_argument("--cron", required=True, help="minute hour day month weekday, in UTC: '0 3 * * *' is 3 a.m. daily")
    it.add_argument("--name", default="scheduled", help="the deployment's name in Prefect (default: %(default)s)")
    it = command(status, "status", "which stages are up to date, and what the registry holds")
    it.add_argument("--all", action="store_true", help="every stage, and all metrics of the newest versions")
    it.add_argument("--json", action="store_true", help="for scripts")
    comparing.add_options(
        command(comparing.compare, "compare", "two models on the same examples: intervals, tests, a verdict a task")
    )
    it = command(promote, "promote", "make a version the champion, if the gate agrees")
    it.add_argument("version", help="a version number or an alias, such as challenger")
    it.add_argument("--reason", required=True, help="why; kept in the ledger of decisions")
    it.add_argument("--force", action="store_true", help="even if the gate refuses")
    it = command(rollback, "rollback", "make the previous champion the champion again")
    it.add_argument("--reason", required=True, help="why; kept in the ledger of decisions")


def _add_models(command: Callable[[Any, str, str], argparse.ArgumentParser]) -> None:
    """The commands that use a model, or tokenizers."""
    it = command(generate, "generate", "continue prompts: one is streamed, several are read together")
    it.add_argument("prompts", nargs="+", metavar="prompt")
    checkpoints.add_options(it)
    add_options(it)
    it = command(attend, "attend", "draw what each attention head of a model looks at")
    it.add_argument("text")
    checkpoints.add_options(it)
    it.add_argument("--out", type=Path, default=Path("attention.png"), help="a PNG file (default: %(default)s)")
    it = command(seen, "seen", "what a model read at a step of its pretraining, and from which documents")
    it.add_argument("--model", required=True, help="a trained section")
    it.add_argument("--step", type=int, required=True, help="from 1, as in the curves: step 1 is the first batch")
    it.add_argument("--rows", type=int, default=3, help="how many rows to show (default: %(default)s)")
    it.add_argument("--json", action="store_true", help="for scripts")
    it = command(export, "export", "write a model as a folder that Hugging Face transformers loads")
    it.add_argument("--to", choices=["hf"], required=True, help="the format: Hugging Face transformers")
    it.add_argument("folder", type=Path, metavar="DIR", help="a new or an empty folder")
    checkpoints.add_options(it)
    it = command(import_, "import", "read a folder of Hugging Face transformers, to start a pretraining from it")
    it.add_argument("--from", choices=["hf"], required=True, help="the format: Hugging Face transformers")
    it.add_argument("folder", type=Path, metavar="DIR", help="with config.json, safetensors and a tokenizer")
    it.add_argument("--name", required=True, help=f"it becomes {paths.IMPORTED}/NAME")
    it = command(tokenizers.compare, "tokenizer", "compare tokenizers of several kinds and sizes")
    tokenizers.add_commands(it)


if __name__ == "__main__":
    main()
