"""The `generate` command: a continuation of a prompt, streamed. `python -m tasks.generate PROMPT --checkpoint DIR`."""

import argparse
from pathlib import Path

from plm_core import checkpoint
from plm_core.config import from_dict
from plm_core.generation import SamplingConfig, stream
from plm_core.training.device import prepare
from tasks.seam.stage import main


def generate(folder: Path, prompt: str, sampling: SamplingConfig) -> None:
    """Print the prompt and, piece by piece, what the model makes of it."""
    loaded = checkpoint.load(folder, prepare().device)
    print(prompt, end="", flush=True)
    for piece in stream(loaded.model, loaded.tokenizer, prompt, sampling):
        print(piece, end="", flush=True)
    print()


def _run() -> None:
    defaults = SamplingConfig()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=defaults.max_new_tokens)
    parser.add_argument("--temperature", type=float, default=defaults.temperature)
    parser.add_argument("--top-k", type=int, default=defaults.top_k)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    given = vars(parser.parse_args())
    folder, prompt = given.pop("checkpoint"), given.pop("prompt")
    generate(folder, prompt, from_dict(SamplingConfig, given, "generate"))


if __name__ == "__main__":
    main(_run)
