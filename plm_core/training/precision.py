"""In which numbers a forward pass computes: a parameter of every training, and what a device is asked for."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]
