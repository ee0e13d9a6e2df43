"""The `export` command: a checkpoint in another program's format. `python -m tasks.export DIR --checkpoint DIR`."""

import argparse
from pathlib import Path

from plm_core.interchange import export_hf
from tasks.runtime.stage import main


def export(folder: Path, target: Path) -> None:
    """Write the checkpoint in ``folder`` as a folder of Hugging Face transformers.

    Raises:
        UserError: the checkpoint is damaged or has no counterpart there, or ``target`` holds something.
    """
    export_hf(folder, target)
    print(f"{target}: written; its README.md says how to load it")


def _run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True)
    given = parser.parse_args()
    export(given.checkpoint, given.folder)


if __name__ == "__main__":
    main(_run)
