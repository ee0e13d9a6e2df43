"""Interchange with Hugging Face transformers, without importing it. Used by the ``export`` and ``import`` commands.

A model type is a file with one ``Family``: its sizes and weights, ours and theirs. ``FAMILIES`` names them by our
architecture.
"""

from plm_core.interchange.folder import FAMILIES, export_hf, import_hf

__all__ = ["FAMILIES", "export_hf", "import_hf"]
