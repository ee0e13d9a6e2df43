"""The units that are drawn and swapped when models are compared: groups of examples. Used by ``significance.py``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from plm_core.evaluation.answers import Results

Array = np.ndarray


@dataclass(frozen=True)
class Units:
    """U kinds of groups, made of K distinct results."""

    cells: list[Results]
    """The K results of each side."""
    rows: csr_array
    """``[U, K]``: how many examples of a group have each result."""
    counts: Array
    """``[U]``: how many groups are of each kind."""
    strata: Array
    """``[U]``: groups with the same number are drawn together: they are in one subset, or in several that share
    groups."""


def units_of(sides: Sequence[Results]) -> Units:
    """The distinct results and the distinct groups of them.

    If the sides have different groups, the larger groups are used.
    """
    columns = np.vstack([sides[0].strata, *(side.columns for side in sides)])
    _, first, cell = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    groups = min((side.groups for side in sides), key=lambda names: len(np.unique(names)))
    order = np.lexsort((cell, groups))
    each = np.split(cell[order], np.flatnonzero(np.diff(groups[order])) + 1)
    kinds, counts = zip(*sorted(Counter(tuple(cells.tolist()) for cells in each).items()), strict=True)
    ends = np.cumsum([0, *map(len, kinds)])
    rows = csr_array((np.ones(ends[-1]), np.concatenate(kinds), ends), shape=(len(kinds), len(first)))
    rows.sum_duplicates()
    # Units whose subsets chains of groups connect have the same number.
    units, cells = rows.nonzero()
    subsets = sides[0].strata[first]
    size = rows.shape[0] + int(subsets.max()) + 1
    edges = (np.ones(len(units)), (units, rows.shape[0] + subsets[cells]))
    strata = connected_components(coo_array(edges, shape=(size, size)), directed=False)[1][: rows.shape[0]]
    return Units([side.take(first) for side in sides], rows, np.array(counts), strata)
