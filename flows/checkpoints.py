"""Which model a command works on: its options, and a task run on the checkpoint that they name. Used by the CLI."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from plm_core.shared import paths


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--checkpoint``, of which one can be given."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--model", default="champion", help="a trained section, a version or an alias (default: %(default)s)"
    )
    which.add_argument("--checkpoint", type=Path, metavar="DIR", help="a checkpoint's folder instead")


def run(root: Path, given: argparse.Namespace, task: str, *arguments: str) -> int:
    """Run a task on the checkpoint that ``--checkpoint`` or ``--model`` names; its exit status."""
    local = given.checkpoint.resolve() if given.checkpoint else root / paths.MODELS / given.model
    with tempfile.TemporaryDirectory() as folder:
        found = local.is_dir() or given.checkpoint
        checkpoint = local if found else _registered(root, given.model, Path(folder))
        command = [sys.executable, "-m", task, f"--checkpoint={checkpoint}", *arguments]
        return subprocess.run(command, cwd=root, check=False).returncode


def _registered(root: Path, name: str, target: Path) -> Path:
    """The checkpoint of a registered version, fetched into ``target``."""
    from flows import registry
    from flows.store import RegistryError

    trained = sorted(path.name for path in (root / paths.MODELS).glob("*") if path.is_dir())
    try:
        with registry.opened(root) as opened:
            return opened.checkpoint(opened.get(name), target)
    except RegistryError as error:
        raise RegistryError(f"{error}; trained sections are: {', '.join(trained) or 'none yet'}") from error
