"""The `plm compare` command: two models of the workspace, the registry or a folder, compared by their evidence."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from plm_core.shared import paths


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two models and where to write."""
    parser.add_argument(
        "first", help="a trained section, a version or an alias such as champion, or an evidence folder"
    )
    parser.add_argument("second")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: artifacts/compare/FIRST-SECOND")
    parser.add_argument("--json", action="store_true", help="for scripts")


def compare(root: Path, given: argparse.Namespace) -> int:
    """Run the comparison in the project; its exit status. Two versions are measured on today's examples where needed.

    Raises:
        RegistryError: there is no such version, or it cannot be evaluated.
    """
    names = (given.first, given.second)
    with tempfile.TemporaryDirectory() as work:
        local = [_folder(root, name) for name in names]
        sides = local if all(local) else _fetched(root, names, local, Path(work))
        command = [sys.executable, "-m", "tasks.compare", *map(str, sides)]
        command += ["--names", *(Path(name).name or name for name in names)]
        command += [] if given.out is None else [f"--out={given.out.resolve()}"]
        return subprocess.run(command + ["--json"] * given.json, cwd=root, check=False).returncode


def _folder(root: Path, name: str) -> Path | None:
    """The evidence of the workspace's model of this name, or in this folder."""
    return next((f for f in (root / paths.EVIDENCE / name, Path(name).resolve()) if f.is_dir()), None)


def _fetched(root: Path, names: Sequence[str], local: Sequence[Path | None], work: Path) -> list[Path]:
    """The evidence of both sides, where it is not local that of the registered version of this name."""
    from flows import judging, registry

    with registry.opened(root) as opened:
        if not any(local):
            first, second = (opened.get(name) for name in names)
            if first.number != second.number:
                judging.judge(root, opened, second, first)
        return [
            folder or opened.evidence(opened.get(name), work / str(i))
            for i, (name, folder) in enumerate(zip(names, local, strict=True))
        ]
