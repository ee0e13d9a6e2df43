"""Interchange with Hugging Face transformers, without importing it. Used by the ``export`` and ``import`` commands.

Each model type is a file with one ``Family``, which maps our sizes and weights to theirs. ``FAMILIES`` has them by our
architecture.
"""

from plm_core.interchange.folder import FAMILIES, export_hf, import_hf

__all__ = ["FAMILIES", "export_hf", "import_hf"]
