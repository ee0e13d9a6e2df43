"""Where the relevant passages of a search are ranked. Used for models and for the baseline.

N queries, C distinct passages, W dimensions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

AT_ONCE = 256
"""Queries whose similarity to every passage is held."""


def ranks(queries: Sequence[str], passages: Sequence[str], asked: Any, held: Any) -> list[int]:
    """The rank, from 1, of each query's passage among all distinct passages, by the products of vectors.

    ``queries`` and ``passages`` are the texts [N] of the pairs, ``asked`` [N, W] the vectors of the queries, ``held``
    [C, W] those of the distinct passages in the order of their first occurrence; arrays or sparse matrices. If a query
    occurs in several pairs, their other passages do not compete with its own (Bordes et al. 2013, section 4.2,
    "filtered"). A passage that is as similar as the relevant one, or whose similarity is NaN, is ranked before it.
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys(passages))}
    relevant: dict[str, list[int]] = {}
    for query, passage in zip(queries, passages, strict=True):
        relevant.setdefault(query, []).append(numbers[passage])
    found = []
    for start in range(0, len(queries), AT_ONCE):
        products = asked[start : start + AT_ONCE] @ held.T
        rows = products if isinstance(products, np.ndarray) else products.toarray()
        for row, query, passage in zip(rows, queries[start:], passages[start:], strict=False):
            own = row[numbers[passage]]
            row[relevant[query]] = -np.inf
            found.append(1 + int((~(row < own)).sum()))
    return found
