"""The `plm` command. Everything heavy is imported by the command that needs it: `--help` answers at once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from flows import upkeep
from flows.command import checkpoint_folder, evidence_folders, project, task
from flows.outcome import UserError
from plm_core.shared import paths
from plm_core.shared.kinds import TOKENIZERS
from plm_core.shared.sampling import SamplingConfig

USER_ERROR = 2
"""Exit status for what the user must mend; 1 is for work that failed."""

app = typer.Typer(
    help="Continuous pretraining of language models of your own.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # plain lines, which can be copied, and no import of rich
    pretty_exceptions_enable=False,
)
tokenizer = typer.Typer(help="Compare tokenizers of several kinds and sizes.", no_args_is_help=True)
app.add_typer(tokenizer, name="tokenizer")
for command in (upkeep.doctor, upkeep.gc):
    app.command()(command)

Model = Annotated[str | None, Option(show_default="champion", help="Use this trained section, version or alias.")]
Checkpoint = Annotated[Path | None, Option(metavar="DIR", help="Use the checkpoint in this folder instead of --model.")]
Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]
Reason = Annotated[str, Option(help="Say why; it is kept in the ledger of decisions.")]
Format = Literal["hf"]
Kind = Annotated[list[str] | None, Option(show_default=", ".join(TOKENIZERS), help="Train this kind; can be repeated.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks, and end with an exit status."""
    # One terminal, one interpreter: the commands of the environment that `plm` is installed in come first.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        app(arguments, prog_name="plm")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


@app.command()
def init(
    folder: Annotated[Path, Argument(help="Read the .txt, .jsonl, .csv, .tsv or .parquet files in this folder.")],
    yes: Annotated[bool, Option("--yes", help="Write the parameters without asking.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show the parameters.")] = False,
) -> None:
    """Look at a folder of text and propose the parameters for it."""
    task("init", folder.resolve(), yes=yes, dry_run=dry_run)


@app.command()
def run(force: Annotated[bool, Option("--force", help="Run every stage, up to date or not.")] = False) -> None:
    """Run the stages that are not up to date, and register models."""
    from flows import display, pipeline, standing, timing
    from flows.machine import Machine

    root = project()
    begun = time.monotonic()
    result = pipeline.run(root, force=force)
    whole = time.monotonic() - begun
    cores = Machine.detect().cores
    timing.keep(root, result, whole, cores)
    display.show_end(result, whole, cores)
    if not result.ok:
        print(f"error: {result.error}", file=sys.stderr)
        raise typer.Exit(1)
    standing.show(display.console(), standing.registry_status(root))
    print(f"report         {paths.REPORT}/report.html")
    print("MLflow UI      plm ui mlflow    runs, curves, registry")
    print("Prefect UI     plm ui prefect   flow runs, schedules, logs")


@app.command()
def deploy(
    cron: Annotated[str, Option(help="Run at: minute hour day month weekday, in UTC; '0 3 * * *' is 3 a.m. daily.")],
    name: Annotated[str, Option(help="Name the deployment in Prefect.")] = "scheduled",
) -> None:
    """Run the pipeline on a schedule, as long as this command lives."""
    from flows import deploy as deployment

    deployment.serve(project(), cron, name)


@app.command()
def status(
    every: Annotated[bool, Option("--all", help="Show every stage, and all metrics of the newest versions.")] = False,
    as_json: Json = False,
) -> None:
    """Show which stages are up to date, and what the registry holds."""
    from flows import standing
    from flows.graph import Graph

    root = project()
    stages: list[dict[str, Any]] = [
        {"name": name, "up_to_date": not reasons, "reasons": reasons} for name, reasons in Graph(root).status().items()
    ]
    registry = standing.registry_status(root)
    if as_json:
        print(json.dumps({"stages": stages, "registry": registry}, indent=2))
        return
    from rich.table import Table

    from flows import display

    console = display.console()
    shown = [stage for stage in stages if every or not stage["up_to_date"]]
    if shown:
        table = Table("stage", "state", "why", title="Stages")
        for stage in shown:
            state = "up to date" if stage["up_to_date"] else "to be run"
            table.add_row(stage["name"], state, "; ".join(stage["reasons"]))
        console.print(table)
    console.print(f"stages         {sum(stage['up_to_date'] for stage in stages)} of {len(stages)} up to date")
    standing.show(console, registry, every=every)


@app.command()
def compare(
    first: Annotated[str, Argument(help="Take this trained section, version, alias or folder of evidence.")],
    second: Annotated[str, Argument(help="Compare it with this one.")],
    out: Annotated[Path | None, Option(help="Write here, not into artifacts/compare/FIRST-SECOND.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two models on the same examples, with intervals."""
    with evidence_folders([first, second]) as folders:
        names = [Path(name).name or name for name in (first, second)]
        task("compare", *folders, name=names, out=out and out.resolve(), json=as_json)


@app.command()
def promote(
    version: Annotated[str, Argument(help="Promote this version: a number or an alias, such as challenger.")],
    reason: Reason,
    force: Annotated[bool, Option("--force", help="Promote it even if the gate refuses.")] = False,
) -> None:
    """Make a version the champion, if the gate agrees."""
    from flows import promotion

    outcome = promotion.promote(project(), version, reason, force=force)
    print(f"version {outcome.version}: {outcome.action}: {'; '.join(outcome.reasons)}")
    if outcome.action == "refused":
        raise typer.Exit(1)


@app.command()
def rollback(reason: Reason) -> None:
    """Make the champion before this one the champion again."""
    from flows import promotion

    outcome = promotion.rollback(project(), reason)
    print(f"version {outcome.version} is the champion again: {'; '.join(outcome.reasons)}")


@app.command()
def generate(
    prompts: Annotated[list[str], Argument(help="Continue these; behind -- they may begin with a dash.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
    max_new_tokens: Annotated[int, Option(help="Stop after so many tokens.")] = SamplingConfig.max_new_tokens,
    until_end: Annotated[bool, Option(help="Stop where the model ends the text.")] = SamplingConfig.until_end,
    temperature: Annotated[float, Option(help="Divide the logits by it; 0 is greedy.")] = SamplingConfig.temperature,
    top_k: Annotated[int, Option(help="Draw among so many likeliest tokens; 0 for all.")] = SamplingConfig.top_k,
    top_p: Annotated[float, Option(help="Draw among the likeliest that sum to it; 1 for all.")] = SamplingConfig.top_p,
    repetition_penalty: Annotated[float, Option(help="Avoid repetition, above 1.")] = SamplingConfig.repetition_penalty,
    seed: Annotated[int, Option(help="Draw from this seed; equal seeds give equal texts.")] = SamplingConfig.seed,
) -> None:
    """Continue prompts: one is streamed, several are read together."""
    try:
        sampling = SamplingConfig(max_new_tokens, until_end, temperature, top_k, top_p, repetition_penalty, seed)
    except ValueError as error:
        raise UserError(f"generate.{error}") from error
    with checkpoint_folder(model, checkpoint) as folder:
        task("generate", *prompts, checkpoint=folder, sampling=json.dumps(asdict(sampling)))


@app.command()
def attend(
    text: Annotated[str, Argument(help="Draw the attention to this text.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
    out: Annotated[Path, Option(help="Write this PNG file.")] = Path("attention.png"),
) -> None:
    """Draw what each attention head of a model looks at."""
    with checkpoint_folder(model, checkpoint) as folder:
        task("attend", text, checkpoint=folder, out=out.resolve())


@app.command()
def seen(
    model: Annotated[str, Option(help="Look at the pretraining of this section.")],
    step: Annotated[int, Option(help="Show this step, from 1, as in the curves: step 1 is the first batch.")],
    rows: Annotated[int, Option(help="Show so many rows.")] = 3,
    as_json: Json = False,
) -> None:
    """Show what a model read at a step of its pretraining."""
    task("seen", model, step=step, rows=rows, json=as_json)


@app.command()
def export(
    folder: Annotated[Path, Argument(metavar="DIR", help="Write into this folder, a new or an empty one.")],
    to: Annotated[Format, Option(help="Write this format: Hugging Face transformers.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a model as a folder that Hugging Face transformers loads."""
    with checkpoint_folder(model, checkpoint) as source:
        task("export", folder.resolve(), checkpoint=source)


@app.command("import")
def import_(
    folder: Annotated[Path, Argument(metavar="DIR", help="Read config.json, safetensors and a tokenizer here.")],
    from_: Annotated[Format, Option("--from", help="Read this format: Hugging Face transformers.")],
    name: Annotated[str, Option(help=f"Write the checkpoint {paths.IMPORTED}/NAME.")],
) -> None:
    """Read a Hugging Face folder, to start a pretraining from it."""
    task("import_", folder.resolve(), name=name)


def _sizes_are_arguments(_: typer.Context, old: str | None) -> None:
    if old:
        expected = "plm tokenizer compare 2000 4000 8000 --kind bpe --kind unigram"
        raise typer.BadParameter(f"expected sizes without a name, and --kind for each kind: {expected}")


@tokenizer.command("compare")
def compare_tokenizers(
    sizes: Annotated[list[int], Argument(help="Train vocabularies of these sizes.")],
    kind: Kind = None,
    lowercase: Annotated[bool, Option("--lowercase", help="Make wordpiece as BERT's uncased models have it.")] = False,
    sample: Annotated[int | None, Option(help="Train on every k-th document, so many characters.")] = None,
    as_json: Json = False,
    _: Annotated[str | None, Option("--sizes", "--kinds", hidden=True, callback=_sizes_are_arguments)] = None,
) -> None:
    """Train tokenizers on the training split, and measure them on the validation split."""
    task("compare_tokenizers", *sizes, kind=kind, lowercase=lowercase, sample=sample, json=as_json)


@app.command()
def ui(
    which: Annotated[Literal["mlflow", "prefect"], Argument(help="Serve this one.")] = "mlflow",
    port: Annotated[int | None, Option(show_default="5000 for MLflow, 4200 for Prefect", help="Listen here.")] = None,
) -> None:
    """Serve the user interface of MLflow or Prefect."""
    from flows import settings
    from flows.pipeline import prepare_environment

    root = project()
    prepare_environment()
    if which == "prefect":
        port = port or 4200
        command = [sys.executable, "-m", "prefect", "server", "start"]
        environment = {"PREFECT_SERVER_API_PORT": str(port)}
    else:
        port = port or 5000
        uri = settings.read(root)[0].uri
        if uri.startswith("http"):
            print(f"MLflow runs at {uri} (MLFLOW_TRACKING_URI)")
            return
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--port", str(port)]
        command += ["--workers", "1"]
        environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    print(f"{which}: http://127.0.0.1:{port}   (Ctrl-C ends it)", flush=True)
    done = subprocess.run(command, cwd=root, env={**os.environ, **environment}, check=False)
    raise typer.Exit(done.returncode)


if __name__ == "__main__":
    main()
