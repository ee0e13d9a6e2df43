"""A published model as a start: its checkpoint, and what parameters say to begin with it. Used by import and init."""

import re
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.files import CHECKSUMS, sha256_file
from plm_core.interchange import import_hf
from plm_core.interchange.address import opened
from plm_core.sections.description import read_description
from plm_core.sections.models import shape
from plm_core.shared.paths import IMPORTED
from plm_core.text.tokenizers import open_tokenizer


def imported(model: str, name: str, folder: Path = IMPORTED) -> str:
    """Write the published model at an address as the checkpoint ``folder / name``, and return its exact address.

    Raises:
        UserError: the name is not a folder name or is taken, or the model cannot be read.
    """
    target = folder / name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"name: found {name!r}; expected letters, digits, '.', '_' and '-'")
    if target.exists():
        raise UserError(f"name: {target} exists; choose another name, or delete that folder")
    with opened(model) as (source, exact):
        import_hf(source, target, exact)
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
