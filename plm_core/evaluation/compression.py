"""How many bits a compressor needs for a text that follows another. Used by the stage text-baseline.

A compressor is a language model of bytes that learns as it reads (Deletang et al. 2024, "Language Modeling Is
Compression"): the growth of its output when the held-out text is appended to the training text is the likelihood of the
one given the other. Here it is PPMd (Shkarin 2002), which predicts a byte from up to 16 preceding ones; ``xz -9`` takes
twice as long and needs a third more bits.
"""

import pyppmd

ORDER = 16
MEMORY = 1 << 30
"""The bytes of memory that PPMd may take; beyond them it forgets all that it has read."""
ROOM = MEMORY // 24
"""Bytes of text that fit. A byte of English takes 21 to 24, of Chinese or noise 12 to 14."""


def bits_after(before: bytes, text: bytes) -> int:
    """The bits by which PPMd's output grows when ``text`` follows ``before``; ``ROOM`` holds both."""
    return 8 * (_size(before + text) - _size(before))


def _size(text: bytes) -> int:
    return len(pyppmd.compress(text, max_order=ORDER, mem_size=MEMORY))
