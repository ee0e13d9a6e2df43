"""Groups of examples that are not independent observations: those of one document, and those with a text in common.

Used by the sources. A premise of MNLI occurs in three examples, a question of QQP in many; counted one by one, they
make a difference look more certain than it is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from plm_core.benchmarks.examples import Example
from plm_core.corpus.normalize import words_of

SHORTEST = 5
"""The fewest words of a text that identifies: "food" and "Who is it?" may be asked of every example."""
SHARE = 0.1
"""A text that occurs in a larger share of the examples is a prompt, and does not make a group."""


def grouped(examples: Sequence[Example]) -> list[Example]:
    """The examples with their groups, each named after its first example; a single example has none.

    A group given by the source stays. Other examples are grouped if they have a text in common, directly or through
    others; the choices of a multiple choice do not count.
    """
    texts = ([] if example.group else [example.a, example.b or ""] for example in examples)
    numbers = _components([{text for text in both if len(words_of(text)) >= SHORTEST} for both in texts])
    sizes = np.bincount(numbers)
    firsts: dict[int, str] = {}
    found = []
    for example, number in zip(examples, numbers, strict=True):
        first = firsts.setdefault(number, example.id)
        found.append(example if example.group or sizes[number] == 1 else replace(example, group=first))
    return found


def _components(texts: Sequence[set[str]]) -> list[int]:
    """A number for each set of texts; those that are connected by a text have the same number."""
    # Checking the parameters imports the sources, and should not wait for scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    counts = Counter(text for each in texts for text in each)
    most = max(3.0, SHARE * len(texts))
    places = {text: len(texts) + i for i, text in enumerate(text for text, count in counts.items() if count <= most)}
    edges = [(i, places[text]) for i, each in enumerate(texts) for text in each if text in places]
    rows, columns = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    size = len(texts) + len(places)
    graph = coo_array((np.ones(len(edges)), (rows, columns)), shape=(size, size))
    _, numbers = connected_components(graph, directed=False)
    return numbers[: len(texts)].tolist()
