"""The `import` command: a published model as a checkpoint. `python -m tasks.import_ MODEL --name NAME`."""

import re
from typing import Annotated

from typer import Argument, Option

from plm_core.config import UserError
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
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"name: found {name!r}; expected letters, digits, '.', '_' and '-'")
    target = IMPORTED / name
    if target.exists():
        raise UserError(f"name: {target} exists; choose another name, or delete that folder")
    with opened(model) as (folder, exact):
        digest = import_hf(folder, target, exact)
    described = read_description(target)
    # What the section must say: the rest is as it would be without being named.
    needed = {size: described.model[size] for size in ("context", "layers", "heads", "width")}
    usual = vars(shape(described.architecture, needed | {"vocab_size": described.model["vocab_size"]}, str(target)))
    sizes = needed | {size: value for size, value in described.model.items() if value != usual[size]}
    print(f"{exact or model} -> {target}: written, digest {digest}")
    if described.published and described.published.lacking:
        print(f"drawn at random, because it lacks them: {', '.join(described.published.lacking)}")
    print("to start a pretraining run from it, add to its section of params.yaml:")
    print(f"start:\n  checkpoint: {target.as_posix()}\n  sha256: {digest}")
    print(f"architecture: {described.architecture}\nmodel: {one_line(sizes)}")
    print("and its tokenizer, a section of tokenizers that `models` names:")
    tokenizer = open_tokenizer(target)
    print(f"{name}:\n  given:\n    file: {tokenizer.path.as_posix()}\n    sha256: {tokenizer.sha256}")


if __name__ == "__main__":
    main(import_)
