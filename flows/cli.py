"""The `plm` command. Everything heavy is imported by the command that needs it, so `--help` answers at once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from plm_core.shared import environment, paths
from plm_core.shared.errors import INTERRUPTED, USER_ERROR, UserError
from plm_core.shared.options import TOKENIZERS, Formats, SamplingConfig
from tasks.tracking import mlflow_stores

if TYPE_CHECKING:
    from flows.maintenance.backup import Summary

app = typer.Typer(
    help="Continuous pretraining of your own language models.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # plain lines, which can be copied, and no import of rich
    pretty_exceptions_enable=False,
)

tokenizer = typer.Typer(help="Compare tokenizers of several kinds and sizes.", no_args_is_help=True)
app.add_typer(tokenizer, name="tokenizer")

Model = Annotated[
    str | None, Option(show_default="champion", help="Use this trained or fine-tuned model, version or alias.")
]
Checkpoint = Annotated[Path | None, Option(metavar="DIR", help="Use the checkpoint in this folder instead of --model.")]
Kind = Annotated[list[str] | None, Option(show_default=", ".join(TOKENIZERS), help="Train this kind; can be repeated.")]
Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]
Reason = Annotated[str, Option(help="Say why; it is kept in the ledger of decisions.")]


def show_version(wanted: bool) -> None:
    """Print the version of the package, and exit."""
    if wanted:
        from importlib.metadata import version

        print(f"plm-pipeline {version('plm-pipeline')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _version: Annotated[
        bool, Option("--version", is_eager=True, callback=show_version, help="Print the version.")
    ] = False,
) -> None:
    """Without a command, say where this project stands and what to do next."""
    if context.invoked_subcommand is None:
        from flows.run import overview

        overview.show(project())


def project() -> Path:
    """The folder with ``dvc.yaml`` at or above the current one. Raises UserError: there is none."""
    cwd = Path.cwd()
    for folder in (cwd, *cwd.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    raise UserError(f"{cwd}: no dvc.yaml and params.yaml here or above; run plm in the project's folder")


def task(name: str, /, *arguments: object, **options: object) -> None:
    """Run ``python -m tasks.NAME`` in the project; if it fails, exit with its status.

    An option that is True becomes a flag, a list is given once per item, and None and False are left out.
    """
    command = [sys.executable, "-m", f"tasks.commands.{name}"]
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        if value is True:
            command.append(flag)
        elif value is not None and value is not False:
            command += [f"{flag}={item}" for item in (value if isinstance(value, list) else [value])]
    if status := subprocess.run([*command, "--", *map(str, arguments)], cwd=project(), check=False).returncode:
        sys.exit(status)


@contextlib.contextmanager
def checkpoint_folder(model: str | None, folder: Path | None) -> Iterator[Path]:
    """The given folder, or that of a trained section, a fine-tuned model or a registered version, kept until the block
    ends. Raises UserError: both are given, or there is no such model."""
    if model and folder:
        raise UserError(f"--model {model}, --checkpoint {folder}: expected one of them, not both")
    name = model or "champion"
    root = project()
    if folder:
        yield folder.resolve()
        return
    for made in (paths.MODELS, paths.FINETUNED):
        if (local := root / made / name).is_dir():
            yield local
            return
    from flows.registry import model_registry
    from flows.registry.mlflow_client import RegistryError

    with tempfile.TemporaryDirectory() as target:
        try:
            with model_registry.open_registry(root) as opened:
                fetched = opened.checkpoint(opened.get(name), Path(target))
        except RegistryError as error:
            trained = sorted(path.name for path in (root / paths.MODELS).glob("*") if path.is_dir())
            raise RegistryError(f"{error}; trained sections are: {', '.join(trained) or 'none yet'}") from error
        yield fetched


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with a status."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # read by Python at startup: file names and DVC's output are UTF-8
        os.execv(sys.executable, sys.orig_argv)
    environment.lead()
    # The environment that `plm` is installed in comes first on the PATH, so that all processes use one interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # Containers often set this, and then every process recompiles the thousands of files that MLflow imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    try:
        app(arguments, prog_name="plm")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


@app.command()
def init(
    folder: Annotated[Path, Argument(help="Read the .txt, .jsonl, .csv, .tsv or .parquet files in this folder.")],
    add: Annotated[bool, Option("--add", help="Keep the existing sources, and add this folder.")] = False,
    start: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="Start from this model: minilm, smollm2, hf://OWNER/NAME, package://NAME, a folder or a .gguf file.",
        ),
    ] = None,
    yes: Annotated[bool, Option("--yes", help="Write the parameters without asking.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show the parameters.")] = False,
) -> None:
    """Look at a folder of text and propose parameters for it."""
    address = str(Path(start).resolve()) if start and Path(start).exists() else start
    task("init", folder.resolve(), add=add, start=address, yes=yes, dry_run=dry_run)


@app.command()
def run(
    force: Annotated[bool, Option("--force", help="Run every stage, up to date or not.")] = False, as_json: Json = False
) -> None:
    """Run the stages that are not up to date, and register models.

    Exit status: 1 when a stage failed, 75 when it was interrupted.
    """
    from flows.processes.resources import Machine
    from flows.run import live_table, overview, pipeline, timing

    root = project()
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, as Ctrl-C does
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            result = pipeline.run(root, force=force)
    except KeyboardInterrupt:
        print("interrupted: training runs keep their state, and the next `plm run` resumes them")
        raise typer.Exit(INTERRUPTED) from None
    whole = time.monotonic() - begun
    cores = Machine.detect().cores
    timing.write_run_figures(root, result, whole, cores)
    if as_json:
        print(json.dumps(asdict(result) | {"seconds": whole, "verdicts": overview.verdicts(root)}, indent=2))
    else:
        live_table.show_summary(result, whole, cores)
    if not result.ok:
        print(f"error: {result.error}", file=sys.stderr)
        raise typer.Exit(1)
    if not as_json:
        overview.show(root)


@app.command()
def deploy(
    cron: Annotated[str, Option(help="Run at (in UTC): minute hour day month weekday; '0 3 * * *' is daily at 3 a.m.")],
    name: Annotated[str, Option(help="Name the deployment in Prefect.")] = "scheduled",
    with_automations: Annotated[
        bool, Option("--with-automations", help="Also create or update the automations of infra/automations.yaml.")
    ] = False,
) -> None:
    """Run the pipeline on a schedule for as long as this command runs."""
    from flows.schedule import deploy as deployment

    deployment.serve(project(), cron, name, with_automations)


@app.command()
def nights(
    test: Annotated[bool, Option("--test", help="Send a test message to all configured addresses.")] = False,
) -> None:
    """Show how the last scheduled run went, and when the next is due.

    Exit status: 1 when the last run failed or did not happen.
    """
    from flows.run.checkout import pipeline_is_running
    from flows.schedule import history, notifications

    root = project()
    if test:
        notifications.test(root)
    missed = history.notify_missed(root)
    for line in [*history.history_lines(root), *filter(None, [missed])]:
        print(line)
    last = history.ScheduleHistory.read(root)
    # Until it ends, a run counts as "interrupted".
    failed = last.error and (last.ended or not pipeline_is_running(root))
    raise typer.Exit(int(bool(missed or failed)))


@app.command()
def status(
    every: Annotated[bool, Option("--all", help="Show every stage, and all metrics of the newest versions.")] = False,
    as_json: Json = False,
) -> None:
    """Show which stages are up to date, and what the registry holds."""
    from flows import flow_configs
    from flows.maintenance import output_checks
    from flows.registry import registry_status
    from flows.run import checkout
    from flows.run.graph import Graph

    root = project()
    if not as_json and output_checks.cache_is_empty(root):
        flow_configs.read_tracking(root)
        checkout.check_parameters(root)
        print("nothing has run yet: start with `plm run`")
        return
    stages: list[dict[str, Any]] = [
        {"name": name, "up_to_date": not reasons, "reasons": reasons} for name, reasons in Graph(root).status().items()
    ]
    registry = registry_status.registry_status(root)
    if as_json:
        print(json.dumps({"stages": stages, "registry": registry}, indent=2))
        return
    from rich.table import Table

    from flows.run import live_table

    console = live_table.console()
    shown = [stage for stage in stages if every or not stage["up_to_date"]]
    if shown:
        table = Table("stage", "state", "why", title="Stages")
        for stage in shown:
            state = "up to date" if stage["up_to_date"] else "out of date"
            table.add_row(stage["name"], state, "; ".join(stage["reasons"]))
        console.print(table)
    console.print(f"stages         {sum(stage['up_to_date'] for stage in stages)} of {len(stages)} up to date")
    registry_status.show(console, registry, every=every)


@app.command()
def sweep(
    name: Annotated[str, Option(help="Name the sweep; an existing one is resumed.")] = "sweep",
    jobs: Annotated[
        int | None, Option(min=1, show_default="one per GPU, or per core", help="Run this many trials side by side.")
    ] = None,
) -> None:
    """Search for better parameters, as `sweep` in params.yaml says.

    Exit status: 1 when no trial has succeeded, 75 when it was interrupted.
    """
    from flows.run.pipeline import prepare_environment
    from flows.sweeps import sweep as sweeps

    root = project()
    prepare_environment(root)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, as Ctrl-C does
    try:
        searched = sweeps.run(root, name, jobs)
    except KeyboardInterrupt:
        print("interrupted: trials keep their state, and the next `plm sweep` resumes them")
        raise typer.Exit(INTERRUPTED) from None
    task("sweep_page", searched.folder)
    for line in sweeps.result_lines(searched):
        print(line)
    raise typer.Exit(int(searched.best is None))


@app.command()
def compare(
    first: Annotated[str, Argument(help="Take this trained section, version, alias or folder of evidence.")],
    second: Annotated[str, Argument(help="Compare it with this one.")],
    out: Annotated[Path | None, Option(help="Write here instead of artifacts/compare/FIRST-SECOND.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two models on the same examples, with intervals."""
    root = project()
    names = (first, second)
    local = [next((f for f in (root / paths.EVIDENCE / n, Path(n).resolve()) if f.is_dir()), None) for n in names]
    with tempfile.TemporaryDirectory() as work:
        folders = list(filter(None, local))
        if len(folders) < 2:  # versions are fetched, and two of them re-evaluated on the current examples if necessary
            from flows.registry import gate_runner, model_registry

            with model_registry.open_registry(root) as opened:
                if not folders:
                    challenger, other = (opened.get(name) for name in names)
                    if challenger.number != other.number:
                        gate_runner.judge(root, opened, other, challenger, also_earlier=False)
                folders = [
                    folder or opened.evidence(opened.get(name), Path(work) / str(number))
                    for number, (name, folder) in enumerate(zip(names, local, strict=True))
                ]
        shown = [Path(name).name or name for name in names]
        task("compare", *folders, name=shown, out=out and out.resolve(), json=as_json)


@app.command()
def promote(
    version: Annotated[str, Argument(help="Promote this version: a number or an alias, such as challenger.")],
    reason: Reason,
    force: Annotated[bool, Option("--force", help="Promote it even if the gate refuses.")] = False,
    to: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Promote a copy of it in another MLflow, or in models:/NAME of this one."),
    ] = None,
) -> None:
    """Make a version the champion, if the gate agrees."""
    from flows.registry import promotion
    from flows.schedule import notifications

    outcome = promotion.promote(project(), version, reason, force=force, to=to)
    notifications.notify_models(project(), [outcome])
    if outcome.action == "refused":
        against = outcome.reasons[:-1]  # the last one is the user's own
        print(f"version {outcome.version}: refused by the gate: {'; '.join(against)}; `--force` overrules it")
        raise typer.Exit(1)
    place = f" in {mlflow_stores.without_credentials(to)}" if to else ""
    print(f"version {outcome.version}{place}: {outcome.action}: {'; '.join(outcome.reasons)}")


@app.command()
def rollback(reason: Reason) -> None:
    """Make the previous champion the champion again."""
    from flows.registry import promotion
    from flows.schedule import notifications

    outcome = promotion.rollback(project(), reason)
    print(f"version {outcome.version} is the champion again: {'; '.join(outcome.reasons)}")
    notifications.notify_models(project(), [outcome])


@app.command()
def watch() -> None:
    """Record champions chosen in MLflow's UI at once, for as long as this command runs."""
    from flows.registry import alias_watch
    from flows.schedule import notifications

    print("watching the alias champion   (Ctrl-C stops it)", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, as Ctrl-C does
    with contextlib.suppress(KeyboardInterrupt):
        for outcome in alias_watch.moves(project()):
            print(f"version {outcome.version} {outcome.action}: {'; '.join(outcome.reasons)}", flush=True)
            notifications.notify_models(project(), [outcome])


@app.command()
def ui(
    which: Annotated[Literal["mlflow", "prefect"], Argument(help="Serve this one.")] = "mlflow",
    port: Annotated[int | None, Option(show_default="5000, and 4200 for Prefect", help="Listen on this port.")] = None,
) -> None:
    """Serve the user interface of MLflow or Prefect."""
    from flows import flow_configs
    from flows.processes import supervisor
    from flows.run.pipeline import prepare_environment
    from flows.schedule import prefect_server

    root = project()
    prepare_environment(root)
    if which == "prefect":
        port = port or 4200
        command = [sys.executable, "-m", "prefect", "server", "start"]
        environment = {"PREFECT_SERVER_API_PORT": str(port)}
        # By default any page in the user's browser could start runs.
        name = "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"
        environment[name] = os.environ.get(name) or f"http://127.0.0.1:{port},http://localhost:{port}"
    else:
        port = port or 5000
        uri = flow_configs.read_tracking(root)[0].uri
        if uri.startswith("http"):
            address = mlflow_stores.without_credentials(uri)
            print(f"open {address} in a browser: MLflow runs there (MLFLOW_TRACKING_URI or tracking.uri)")
            return
        mlflow_stores.follow(uri)
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--port", str(port)]
        command += ["--workers", "1"]
        environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    print(f"{which}: http://127.0.0.1:{port}   (Ctrl-C stops it)", flush=True)
    # The servers start processes that no signal reaches; the supervisor ends them all, however this process ends.
    # Its last line is meant for the pipeline, so its stdout is discarded, and the servers print to stderr.
    options = {"cwd": root, "env": {**os.environ, **environment}, "stdout": subprocess.DEVNULL}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, as Ctrl-C does
    ours = ["sh", "-c", 'exec "$@" >&2', "sh", *command]
    with (
        supervisor.start_supervisor(prefect_server.STOP_S, ours, **options) as process,
        contextlib.suppress(KeyboardInterrupt),
    ):
        raise typer.Exit(process.wait())


@app.command()
def doctor(
    everything: Annotated[bool, Option("--all", help="Read all versions and DVC's cache byte by byte.")] = False,
    fix: Annotated[
        bool, Option("--fix", help="Fix what can be fixed without losing a result, version or decision.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find problems, and say how to fix them.

    Exit status: 0 when all is well, 1 when there is a problem, 2 when not everything could be checked.
    """
    from flows.maintenance import doctor as health

    report = health.run_checks(project(), everything, mend=fix)
    print(json.dumps(health.report_data(report), indent=2) if as_json else "\n".join(health.report_lines(report)))
    raise typer.Exit(health.status(report))


@app.command()
def backup(
    target: Annotated[str, Argument(help="Write into this folder, or to an address such as s3://bucket/folder.")],
    keep: Annotated[int | None, Option(min=1, show_default="all", help="Keep only the newest N backups.")] = None,
) -> None:
    """Copy the registry, snapshots, imports and results."""
    from flows.maintenance import backup as backups

    _show(backups.backup(project(), _address(target), keep), "copied")


@app.command()
def restore(
    source: Annotated[str, Argument(help="Read the backups in this folder or at this address.")],
    at: Annotated[
        str, Option(show_default="the newest", help="Use the newest whose name starts with this, such as 2026-11-22.")
    ] = "",
) -> None:
    """Restore a backup; nothing in the checkout is lost."""
    from flows.maintenance import backup as backups

    _show(backups.restore(project(), _address(source), at), "restored from it")


@app.command()
def gc(
    yes: Annotated[bool, Option("--yes", help="Delete; the default without a terminal.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only show what would be deleted; the default at a terminal.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete what `retention` in params.yaml does not keep."""
    from rich.filesize import decimal
    from rich.table import Table

    from flows.maintenance import garbage
    from flows.run.live_table import console

    if yes and dry_run:
        raise UserError("--yes, --dry-run: expected one of them, not both")
    delete = yes or not (dry_run or sys.stdin.isatty())
    report = garbage.collect(project(), delete)
    findings = report.mended + report.findings
    size = sum(finding.bytes or 0 for finding in findings)  # as far as is known
    if as_json:
        waste = [{"what": finding.where, "why": finding.what, "bytes": finding.bytes} for finding in findings]
        print(json.dumps({"deleted": delete, "waste": waste, "bytes": size, "failed": report.unseen}, indent=2))
        raise typer.Exit(int(bool(report.unseen)))
    out = console()
    if findings:
        table = Table("what", "why", "frees", title="Deleted" if delete else "To be deleted")
        for finding in findings:
            table.add_row(finding.where, finding.what, "" if finding.bytes is None else decimal(finding.bytes))
        out.print(table)
    for name, why in report.unseen.items():
        out.print(f"[yellow]warning[/yellow]        {name}: {why}")
    out.print(f"{decimal(size)} {'freed' if delete else 'to be freed'}" if findings else "nothing to delete")
    if findings and not delete:
        out.print("`plm gc --yes` deletes it")
    raise typer.Exit(int(bool(report.unseen)))


def _address(given: str) -> str:
    return given if "://" in given else str(Path(given).resolve())


def _show(summary: "Summary", done: str) -> None:
    moved = f"{summary.moved / 1e6:,.1f} MB {done}"
    print(f"backup {summary.name}: {summary.files:,} files of {summary.size / 1e6:,.1f} MB, {moved}")
    for note in summary.notes:
        print(note)


@app.command()
def generate(
    prompts: Annotated[list[str], Argument(help="Continue these; put -- before prompts that start with a dash.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
    max_new_tokens: Annotated[int, Option(help="Stop after this many tokens.")] = SamplingConfig.max_new_tokens,
    until_end: Annotated[bool, Option(help="Stop at the end-of-text token.")] = SamplingConfig.until_end,
    temperature: Annotated[float, Option(help="Divide the logits by this; 0 is greedy.")] = SamplingConfig.temperature,
    top_k: Annotated[int, Option(help="Sample from the K most likely tokens; 0: from all.")] = SamplingConfig.top_k,
    top_p: Annotated[
        float, Option(help="Sample from the most likely tokens whose probabilities add up to this; 1: from all.")
    ] = SamplingConfig.top_p,
    repetition_penalty: Annotated[float, Option(help="Above 1: repeat less.")] = SamplingConfig.repetition_penalty,
    seed: Annotated[int, Option(help="Random seed; the same seed gives the same text.")] = SamplingConfig.seed,
) -> None:
    """Continue prompts: a single one is streamed, several are processed as a batch."""
    try:
        sampling = SamplingConfig(max_new_tokens, until_end, temperature, top_k, top_p, repetition_penalty, seed)
    except ValueError as error:
        raise UserError(f"generate.{error}") from error
    with checkpoint_folder(model, checkpoint) as folder:
        task("generate", *prompts, checkpoint=folder, sampling=json.dumps(asdict(sampling)))


@app.command()
def attend(
    text: Annotated[str, Argument(help="Plot the attention for this text.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
    out: Annotated[Path, Option(help="Write this PNG file.")] = Path("attention.png"),
    written: Annotated[str, Option(help="Plot how an encoder-decoder attends to the text to write this one.")] = "",
) -> None:
    """Plot what each attention head of a model attends to."""
    with checkpoint_folder(model, checkpoint) as folder:
        task("attend", text, checkpoint=folder, out=out.resolve(), written=written)


@app.command()
def embed(
    file: Annotated[Path, Argument(help="Embed the texts of this file: .txt (one per line), .jsonl, .csv, .parquet.")],
    output: Annotated[Path, Option(help="Write this Parquet file; if interrupted, the next call continues.")],
    text: Annotated[str, Option(help="Read the text from this column.")] = "text",
    model: Model = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a vector for each text of a file, for search and similarity."""
    with checkpoint_folder(model, checkpoint) as folder:
        task("embed", file.resolve(), checkpoint=folder, output=output.resolve(), text=text)


@app.command()
def seen(
    model: Annotated[str, Option(help="Show the pretraining run of this section.")],
    step: Annotated[int, Option(help="Show this step, counted from 1 as in the curves.")],
    rows: Annotated[int, Option(help="Show this many rows.")] = 3,
    as_json: Json = False,
) -> None:
    """Show what a model read at a step of its pretraining."""
    task("seen", model, step=step, rows=rows, json=as_json)


@app.command()
def export(
    target: Annotated[Path, Argument(metavar="TARGET", help="Write this new or empty folder, or this new .gguf file.")],
    to: Annotated[Formats, Option(help="Write a folder for transformers (hf) or MLflow, or a file for llama.cpp.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a model for transformers, for `mlflow models serve`, or for Ollama and other programs that read GGUF."""
    with checkpoint_folder(model, checkpoint) as source:
        task("export", target.resolve(), to=to, checkpoint=source)


PUBLISHED = "Read this model: a transformers folder, a .gguf file, package://NAME, or hf://OWNER/NAME[@REVISION]."


@app.command("import")
def import_(
    model: Annotated[str, Argument(metavar="MODEL", help=PUBLISHED)],
    name: Annotated[str, Option(help=f"Write the checkpoint {paths.IMPORTED}/NAME.")],
) -> None:
    """Read a published model, to start a pretraining run from it."""
    task("import_", model if "://" in model else Path(model).resolve(), name=name)


@tokenizer.command("compare")
def compare_tokenizers(
    sizes: Annotated[list[int] | None, Argument(help="Train vocabularies of these sizes.")] = None,
    kind: Kind = None,
    lowercase: Annotated[bool, Option("--lowercase", help="Lowercase the text first (wordpiece only).")] = False,
    sample: Annotated[int | None, Option(help="Train on about this many characters, taken from all documents.")] = None,
    given: Annotated[
        list[Path] | None, Option(help="Also measure this tokenizer: its file, or a folder that `plm import` wrote.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train tokenizers on the training split; measure these, and given ones, on the validation split."""
    files = [path.resolve() for path in given or ()]
    task("compare_tokenizers", *sizes or (), kind=kind, lowercase=lowercase, sample=sample, given=files, json=as_json)


if __name__ == "__main__":
    main()
