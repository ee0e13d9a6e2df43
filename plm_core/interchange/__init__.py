"""Interchange with Hugging Face transformers, without importing it. Used by the ``export`` and ``import`` commands.

``FAMILIES`` and ``PUBLISHED`` have the tables that map our sizes and weights to theirs.
"""

from plm_core.interchange.architecture_tables import FAMILIES, PUBLISHED
from plm_core.interchange.transformers_folder import export_hf, import_hf

__all__ = ["FAMILIES", "PUBLISHED", "export_hf", "import_hf"]
