"""The `import` command: a published model as a checkpoint. `python -m tasks.commands.import_ MODEL --name NAME`."""

from typing import Annotated

from typer import Argument, Option

from plm_core.configs.checkpoint_description import read_description
from plm_core.interchange.published_models import imported, section_of, tokenizer_of
from plm_core.shared.files import CHECKSUMS, sha256_file
from plm_core.shared.paths import IMPORTED
from tasks.parameters.editing import one_line
from tasks.runtime.stage import main


def import_(
    model: Annotated[str, Argument(metavar="MODEL", help="Read the published model at this address.")],
    name: Annotated[str, Option(help=f"Write the checkpoint {IMPORTED}/NAME.")],
) -> None:
    """Write a published model as a checkpoint, and print how to start a pretraining run from it.

    Raises:
        UserError: the name is not a folder name or is taken, or the model cannot be read.
    """
    target = IMPORTED / name
    exact = imported(model, name)
    described = read_description(target)
    print(f"{exact or model} -> {target}: written, digest {sha256_file(target / CHECKSUMS)}")
    if described.published and described.published.lacking:
        print(f"drawn at random, because it lacks them: {', '.join(described.published.lacking)}")
    section = section_of(target)
    print("to start a pretraining run from it, add to its section of params.yaml:")
    print("\n".join(f"{key}: {one_line(value)}" for key, value in section.items()))
    print("and its tokenizer, a section of tokenizers that `models` names:")
    print(f"{name}: {one_line(tokenizer_of(target))}")


if __name__ == "__main__":
    main(import_)
