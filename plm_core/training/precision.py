"""The precision of a forward pass: a parameter of every training run, and what a device is asked for."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]
