"""The `plm compare` command: two models of the workspace, the registry or a folder, compared by their evidence."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two models and where to write."""
    parser.add_argument(
        "first", help="a trained section, a version or an alias such as champion, or an evidence folder"
    )
    parser.add_argument("second")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: artifacts/compare/FIRST-SECOND")
    parser.add_argument("--json", action="store_true", help="for scripts")


def compare(root: Path, given: argparse.Namespace) -> int:
    """Run the comparison in the project; its exit status."""
    with tempfile.TemporaryDirectory() as work:
        sides = [_evidence(root, name, Path(work) / str(i)) for i, name in enumerate((given.first, given.second))]
        command = [sys.executable, "-m", "tasks.compare", *map(str, sides)]
        command += ["--names", *(Path(name).name or name for name in (given.first, given.second))]
        command += [] if given.out is None else [f"--out={given.out.resolve()}"]
        return subprocess.run(command + ["--json"] * given.json, cwd=root, check=False).returncode


def _evidence(root: Path, name: str, target: Path) -> Path:
    """The evidence of the workspace's model, of a folder, or of a registered version, fetched into ``target``."""
    for folder in (root / "artifacts/evidence" / name, Path(name).resolve()):
        if folder.is_dir():
            return folder
    from flows import registry

    with registry.opened(root) as opened:
        return opened.evidence(opened.get(name), target)
