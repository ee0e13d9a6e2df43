"""The `import` command: a published model as a checkpoint. `python -m tasks.import_ MODEL --name NAME`."""

import re
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from plm_core.config import UserError
from plm_core.files import CHECKSUMS, sha256_file
from plm_core.interchange import import_hf
from plm_core.interchange.address import opened
from plm_core.sections.description import read_description
from plm_core.sections.models import shape
from plm_core.shared.paths import IMPORTED
from plm_core.text.tokenizers import open_tokenizer
from tasks.runtime.stage import main
from tasks.settings.editing import one_line


def import_(
    model: Annotated[str, Argument(metavar="MODEL", help="Read the published model at this address.")],
    name: Annotated[str, Option(help=f"Write the checkpoint {IMPORTED}/NAME.")],
) -> None:
    """Write a published model as a checkpoint, and print how to start a pretraining run from it.

    Raises:
        UserError: the name is not a folder name or is taken, or the model cannot be read.
    """
    target = IMPORTED / name
    exact = imported(model, target)
    described = read_description(target)
    print(f"{exact or model} -> {target}: written, digest {sha256_file(target / CHECKSUMS)}")
    if described.published and described.published.lacking:
        print(f"drawn at random, because it lacks them: {', '.join(described.published.lacking)}")
    section = section_of(target)
    print("to start a pretraining run from it, add to its section of params.yaml:")
    print("\n".join(f"{key}: {one_line(value)}" for key, value in section.items()))
    print("and its tokenizer, a section of tokenizers that `models` names:")
    print(f"{name}: {one_line(tokenizer_of(target))}")


def imported(model: str, target: Path) -> str:
    """Write the published model at an address as the checkpoint ``target``, and return its exact address.

    Raises:
        UserError: the name is not a folder name or is taken, or the model cannot be read.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", target.name):
        raise UserError(f"name: found {target.name!r}; expected letters, digits, '.', '_' and '-'")
    if target.exists():
        raise UserError(f"name: {target} exists; choose another name, or delete that folder")
    with opened(model) as (folder, exact):
        import_hf(folder, target, exact)
    return exact


def section_of(target: Path) -> dict[str, Any]:
    """What a section of ``pretrain`` has to say to start from a checkpoint."""
    described = read_description(target)
    # The sizes that must be named: the rest is as it would be without.
    needed = {size: described.model[size] for size in ("context", "layers", "heads", "width")}
    usual = vars(shape(described.architecture, needed | {"vocab_size": described.model["vocab_size"]}, str(target)))
    sizes = needed | {size: value for size, value in described.model.items() if value != usual[size]}
    start = {"checkpoint": target.as_posix(), "sha256": sha256_file(target / CHECKSUMS)}
    return {"start": start, "architecture": described.architecture, "model": sizes}


def tokenizer_of(target: Path) -> dict[str, Any]:
    """The section of ``tokenizers`` for a checkpoint's own."""
    tokenizer = open_tokenizer(target)
    return {"given": {"file": tokenizer.path.as_posix(), "sha256": tokenizer.sha256}}


if __name__ == "__main__":
    main(import_)
