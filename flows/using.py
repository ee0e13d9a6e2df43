"""The `plm` commands that use models and tokenizers: generate, attend, seen, export, import. Part of ``cli.py``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from flows.command import Json, checkpoint_folder, task
from flows.outcome import UserError
from plm_core.shared import paths
from plm_core.shared.kinds import TOKENIZERS
from plm_core.shared.sampling import SamplingConfig

tokenizer = typer.Typer(help="Compare tokenizers of several kinds and sizes.", no_args_is_help=True)

Model = Annotated[str | None, Option(show_default="champion", help="Use this trained section, version or alias.")]
Checkpoint = Annotated[Path | None, Option(metavar="DIR", help="Use the checkpoint in this folder instead of --model.")]
Format = Literal["hf"]
Kind = Annotated[list[str] | None, Option(show_default=", ".join(TOKENIZERS), help="Train this kind; can be repeated.")]


def generate(
    prompts: Annotated[list[str], Argument(help="Continue these; put -- before prompts that start with a dash.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
    max_new_tokens: Annotated[int, Option(help="Stop after this many tokens.")] = SamplingConfig.max_new_tokens,
    until_end: Annotated[bool, Option(help="Stop at the end-of-text token.")] = SamplingConfig.until_end,
    temperature: Annotated[float, Option(help="Divide the logits by it; 0 is greedy.")] = SamplingConfig.temperature,
    top_k: Annotated[int, Option(help="Sample from the K most likely tokens; 0: from all.")] = SamplingConfig.top_k,
    top_p: Annotated[
        float, Option(help="Sample from the most likely tokens whose probabilities add up to this; 1: from all.")
    ] = SamplingConfig.top_p,
    repetition_penalty: Annotated[float, Option(help="Avoid repetition, above 1.")] = SamplingConfig.repetition_penalty,
    seed: Annotated[int, Option(help="Random seed; the same seed gives the same text.")] = SamplingConfig.seed,
) -> None:
    """Continue prompts: a single one is streamed, several are processed as a batch."""
    try:
        sampling = SamplingConfig(max_new_tokens, until_end, temperature, top_k, top_p, repetition_penalty, seed)
    except ValueError as error:
        raise UserError(f"generate.{error}") from error
    with checkpoint_folder(model, checkpoint) as folder:
        task("generate", *prompts, checkpoint=folder, sampling=json.dumps(asdict(sampling)))


def attend(
    text: Annotated[str, Argument(help="Plot the attention for this text.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
    out: Annotated[Path, Option(help="Write this PNG file.")] = Path("attention.png"),
) -> None:
    """Plot what each attention head of a model attends to."""
    with checkpoint_folder(model, checkpoint) as folder:
        task("attend", text, checkpoint=folder, out=out.resolve())


def seen(
    model: Annotated[str, Option(help="Show the pretraining run of this section.")],
    step: Annotated[int, Option(help="Show this step, counted from 1 as in the curves.")],
    rows: Annotated[int, Option(help="Show this many rows.")] = 3,
    as_json: Json = False,
) -> None:
    """Show what a model read at a step of its pretraining."""
    task("seen", model, step=step, rows=rows, json=as_json)


def export(
    folder: Annotated[Path, Argument(metavar="DIR", help="Write into this folder, a new or an empty one.")],
    to: Annotated[Format, Option(help="Write this format: Hugging Face transformers.")],
    model: Model = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a model as a folder that Hugging Face transformers loads."""
    with checkpoint_folder(model, checkpoint) as source:
        task("export", folder.resolve(), checkpoint=source)


def import_(
    folder: Annotated[Path, Argument(metavar="DIR", help="Read config.json, safetensors and a tokenizer here.")],
    from_: Annotated[Format, Option("--from", help="Read this format: Hugging Face transformers.")],
    name: Annotated[str, Option(help=f"Write the checkpoint {paths.IMPORTED}/NAME.")],
) -> None:
    """Read back a folder of `plm export`, to start a pretraining run from it."""
    task("import_", folder.resolve(), name=name)


@tokenizer.command("compare")
def compare_tokenizers(
    sizes: Annotated[list[int], Argument(help="Train vocabularies of these sizes.")],
    kind: Kind = None,
    lowercase: Annotated[bool, Option("--lowercase", help="Lowercase the text first (wordpiece only).")] = False,
    sample: Annotated[int | None, Option(help="Train on about this many characters, from all documents.")] = None,
    as_json: Json = False,
) -> None:
    """Train tokenizers on the training split, and measure them on the validation split."""
    task("compare_tokenizers", *sizes, kind=kind, lowercase=lowercase, sample=sample, json=as_json)
