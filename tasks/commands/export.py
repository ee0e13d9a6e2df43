"""The `export` command: a checkpoint in another program's format.

`python -m tasks.commands.export DIR --checkpoint DIR`
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from plm_core.interchange import export_hf
from plm_core.interchange.gguf_files import export_gguf
from plm_core.shared.options import Formats
from tasks.runtime.stage import main


def export(
    target: Annotated[Path, Argument(metavar="TARGET", help="Write this new folder, or this new .gguf file.")],
    checkpoint: Annotated[Path, Option(help="Read the checkpoint in this folder.")],
    to: Annotated[Formats, Option(help="Write this format.")] = "hf",
) -> None:
    """Write a checkpoint as a folder for Hugging Face transformers or MLflow, or as a GGUF file.

    Raises:
        UserError: the checkpoint is damaged or has no counterpart there, or ``target`` is not new.
    """
    if to == "mlflow":
        from tasks.publishing.mlflow_model import save_model  # takes seconds to import

        save_model(checkpoint, target)
    elif to == "hf":
        export_hf(checkpoint, target)
    else:
        export_gguf(checkpoint, target, to)
    how = "; its README.md says how to load it" if (target / "README.md").is_file() else ""
    if to == "mlflow":
        how = f"; to serve it: mlflow models serve -m {target} --env-manager local --port 5001"
    print(f"{target}: written{how}")


if __name__ == "__main__":
    main(export)
