"""The `generate` command: prompts continued by a model. `python -m tasks.generate PROMPT ... --checkpoint DIR`.

One prompt is streamed; several are read together and printed when all are done, with an empty line between.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from plm_core import checkpoint
from plm_core.config import from_dict
from plm_core.generation import generate_batch, stream
from plm_core.shared.sampling import SamplingConfig, add_options
from plm_core.training.device import prepare
from tasks.runtime.stage import main


def generate(folder: Path, prompts: Sequence[str], sampling: SamplingConfig) -> None:
    """Print each prompt with what the model makes of it.

    Raises:
        UserError: the checkpoint is damaged, or its model does not continue texts.
    """
    loaded = checkpoint.load(folder, prepare().device)
    for prompt in prompts:
        _note(loaded, prompt)
    if len(prompts) > 1:
        continuations = generate_batch(loaded, prompts, sampling)
        print(*(p + c for p, c in zip(prompts, continuations, strict=True)), sep="\n\n")
        return
    pieces = stream(loaded, prompts[0], sampling)
    print(prompts[0] + next(pieces), end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _note(loaded: checkpoint.Loaded, prompt: str) -> None:
    """Say beside the text what may surprise: a prompt of which nothing, or not all, is read."""
    if not prompt.strip():
        print("note: the prompt is empty: the model begins a text of its own", file=sys.stderr)
    config = loaded.model.config
    tokens, window = len(loaded.tokenizer.encode(prompt)), config.context + getattr(config, "memory", 0)
    if tokens > window:
        print(f"note: the prompt has {tokens:,} tokens; the model reads the last {window:,}", file=sys.stderr)


def _run() -> None:
    parser = argparse.ArgumentParser(description="Continue prompts with a model.")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("--checkpoint", type=Path, required=True)
    add_options(parser)
    given = vars(parser.parse_args())
    folder, prompts = given.pop("checkpoint"), given.pop("prompts")
    generate(folder, prompts, from_dict(SamplingConfig, given, "generate"))


if __name__ == "__main__":
    main(_run)
