"""The `plm tokenizer` commands: their options, and the task that does the work. Used by the CLI."""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from plm_core.shared.kinds import TOKENIZERS as KINDS


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add ``compare`` below ``plm tokenizer``."""
    text = "train tokenizers of several kinds and sizes on the training split, measure them on the validation split"
    it = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("compare", help=text, description=text)
    it.add_argument("--sizes", type=int, nargs="+", required=True, metavar="N", help="vocabulary sizes")
    it.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="default: all four")
    it.add_argument("--lowercase", action="store_true", help="wordpiece as BERT's uncased models have it")
    it.add_argument("--sample", type=int, metavar="N", help="train on every k-th document, N characters in all")
    it.add_argument("--json", action="store_true", help="for scripts")


def compare(root: Path, given: Any) -> int:
    """Run the comparison in the project; its exit status."""
    options = [name for name in ("lowercase", "json") if getattr(given, name)]
    command = [sys.executable, "-m", "tasks.compare_tokenizers", "--sizes", *map(str, given.sizes)]
    command += ["--kinds", *given.kinds, *(f"--{name}" for name in options)]
    command += [] if given.sample is None else [f"--sample={given.sample}"]
    return subprocess.run(command, cwd=root, check=False).returncode
