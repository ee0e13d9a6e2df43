"""The `generate` command: prompts continued by a model.

`python -m tasks.commands.generate PROMPT ... --checkpoint DIR`

One prompt is streamed; several are read together and printed when all are done, separated by empty lines.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from plm_core import checkpoint
from plm_core.config import from_dict
from plm_core.generation import generate_batch, stream
from plm_core.shared.options import SamplingConfig
from plm_core.training.device import prepare
from tasks.runtime.stage import main

DEFAULTS = json.dumps(asdict(SamplingConfig()))


def generate(
    prompts: Annotated[list[str], Argument(help="Continue these.")],
    folder: Annotated[Path, Option("--checkpoint", help="Use the checkpoint in this folder.")],
    sampling: Annotated[Any, Option(parser=json.loads, metavar="JSON", help="Sample with these settings.")] = DEFAULTS,
) -> None:
    """Print each prompt with the model's continuation.

    Raises:
        UserError: the checkpoint is damaged, its model cannot continue texts, or a field of ``sampling`` is wrong.
    """
    config = from_dict(SamplingConfig, sampling, "generate")
    loaded = checkpoint.load(folder, prepare().device)
    window = loaded.model.config.context + getattr(loaded.model.config, "memory", 0)
    for tokens in (len(loaded.tokenizer.encode(prompt)) for prompt in prompts):
        if tokens == 0:
            print("note: the prompt is empty, so the model begins a text of its own", file=sys.stderr)
        if tokens > window:
            reads = f"the model reads at most the last {window:,}"
            print(f"note: the prompt has {tokens:,} tokens; {reads}", file=sys.stderr)
    if len(prompts) > 1:
        continuations = generate_batch(loaded, prompts, config)
        print(*(p + c for p, c in zip(prompts, continuations, strict=True)), sep="\n\n")
        return
    pieces = stream(loaded, prompts[0], config)
    print(prompts[0] + next(pieces), end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(generate, gpus=1)
