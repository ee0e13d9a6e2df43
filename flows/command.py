"""What the commands of `plm` share: the project's folder, a task as a process, the models that names stand for."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Option

from flows.outcome import UserError
from plm_core.shared import paths

Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]


def project() -> Path:
    """The folder with ``dvc.yaml`` at or above the current one; UserError where there is none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    raise UserError(f"{here}: no dvc.yaml and params.yaml here or above; run plm in the project's folder")


def task(name: str, /, *arguments: object, **options: object) -> None:
    """Run ``python -m tasks.NAME`` in the project; if it fails, end with its exit status.

    An option that is True is given as a flag, a list once for each of its items, and None and False are left out.
    """
    command = [sys.executable, "-m", f"tasks.{name}"]
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
    """The given folder, or that of a trained section or registered version; one that is fetched lasts for the block.

    Raises:
        UserError: both are given, or there is no such model.
    """
    if model and folder:
        raise UserError(f"--model {model}, --checkpoint {folder}: expected one of them, not both")
    name = model or "champion"
    local = folder.resolve() if folder else project() / paths.MODELS / name
    with tempfile.TemporaryDirectory() as target:
        yield local if folder or local.is_dir() else _registered(name, Path(target))


def _registered(name: str, target: Path) -> Path:
    """The checkpoint of a registered version, fetched into ``target``."""
    from flows import registry
    from flows.store import RegistryError

    trained = sorted(path.name for path in (project() / paths.MODELS).glob("*") if path.is_dir())
    try:
        with registry.opened(project()) as opened:
            return opened.checkpoint(opened.get(name), target)
    except RegistryError as error:
        raise RegistryError(f"{error}; trained sections are: {', '.join(trained) or 'none yet'}") from error


@contextlib.contextmanager
def evidence_folders(names: list[str]) -> Iterator[list[Path]]:
    """The evidence of two models of the workspace, folders or registered versions; what is fetched lasts for the block.

    Two versions are measured on today's examples where needed.

    Raises:
        RegistryError: there is no such version, or it cannot be evaluated.
    """
    root = project()
    local = [next((f for f in (root / paths.EVIDENCE / n, Path(n).resolve()) if f.is_dir()), None) for n in names]
    with tempfile.TemporaryDirectory() as work:
        yield [folder for folder in local if folder] if all(local) else _fetched(root, names, local, Path(work))


def _fetched(root: Path, names: list[str], local: list[Path | None], work: Path) -> list[Path]:
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
