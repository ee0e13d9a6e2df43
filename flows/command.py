"""What the `plm` commands share: the project's folder, running a task as a process, finding models by name."""

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
    """The folder with ``dvc.yaml`` at or above the current one. Raises UserError: there is none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    raise UserError(f"{here}: no dvc.yaml and params.yaml here or above; run plm in the project's folder")


def task(name: str, /, *arguments: object, **options: object) -> None:
    """Run ``python -m tasks.NAME`` in the project; if it fails, exit with its status.

    An option that is True becomes a flag, a list is given once per item, and None and False are left out.
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
    """The given folder, or that of a trained section or registered version, fetched for the time of the block.

    Raises:
        UserError: both are given, or there is no such model.
    """
    if model and folder:
        raise UserError(f"--model {model}, --checkpoint {folder}: expected one of them, not both")
    name = model or "champion"
    root = project()
    local = folder.resolve() if folder else root / paths.MODELS / name
    if folder or local.is_dir():
        yield local
        return
    from flows import registry
    from flows.store import RegistryError

    with tempfile.TemporaryDirectory() as target:
        try:
            with registry.opened(root) as opened:
                fetched = opened.checkpoint(opened.get(name), Path(target))
        except RegistryError as error:
            trained = sorted(path.name for path in (root / paths.MODELS).glob("*") if path.is_dir())
            raise RegistryError(f"{error}; trained sections are: {', '.join(trained) or 'none yet'}") from error
        yield fetched


@contextlib.contextmanager
def evidence_folders(names: list[str]) -> Iterator[list[Path]]:
    """The evidence folders of two models: trained sections, folders or versions, fetched for the time of the block.

    Two versions are re-evaluated on the current examples if necessary.

    Raises:
        RegistryError: there is no such version, or it cannot be evaluated.
    """
    root = project()
    local = [next((f for f in (root / paths.EVIDENCE / n, Path(n).resolve()) if f.is_dir()), None) for n in names]
    if all(local):
        yield [folder for folder in local if folder]
        return
    from flows import judging, registry

    with tempfile.TemporaryDirectory() as work:
        with registry.opened(root) as opened:
            if not any(local):
                first, second = (opened.get(name) for name in names)
                if first.number != second.number:
                    judging.judge(root, opened, second, first, also_earlier=False)
            folders = [
                folder or opened.evidence(opened.get(name), Path(work) / str(i))
                for i, (name, folder) in enumerate(zip(names, local, strict=True))
            ]
        yield folders
