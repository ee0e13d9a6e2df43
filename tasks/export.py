"""The `export` command: a checkpoint in another program's format. `python -m tasks.export DIR --checkpoint DIR`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from plm_core.interchange import export_hf
from tasks.runtime.stage import main


def export(
    target: Annotated[Path, Argument(metavar="DIR", help="Write into this folder, which must be new or empty.")],
    checkpoint: Annotated[Path, Option(help="Read the checkpoint in this folder.")],
) -> None:
    """Write a checkpoint as a Hugging Face transformers folder.

    Raises:
        UserError: the checkpoint is damaged or has no counterpart there, or ``target`` is not empty.
    """
    export_hf(checkpoint, target)
    print(f"{target}: written; its README.md says how to load it")


if __name__ == "__main__":
    main(export)
