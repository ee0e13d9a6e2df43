"""The splits of a task: the examples held out of the training set to choose the best epoch, groups of examples that
depend on each other, and overlap between splits.

Used by the sources and the stage examples.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.corpus.normalize import words_of
from plm_core.corpus.split import place_of

SHARE = 0.1
MOST = 1000
"""The held-out part: a tenth of the training set, but at most this many examples, with the last group whole."""
SHORTEST = 5
"""The fewest words of a text that identifies: "food" and "Who is it?" may be asked of every example."""
COMMON = 0.1
"""A text that occurs in a larger share of the examples is a prompt, and does not make a group."""


def hold_out(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Split the training set into train and valid, each in its original order.

    Valid has the examples whose hash is in the lowest tenth of all hashes, of those the 1,000 lowest, and at least one.
    The hash is that of the group that the source gives, or otherwise of the id, so that no group is on both sides
    unless there is only one. So an example's side depends on that name alone: additions move no example from train to
    valid, and none from valid to train before there are 1,000.
    """
    positions = [place_of(f"valid/{e.group or e.id}") for e in examples]
    if len(set(positions)) == 1:
        positions = [place_of(f"valid/{e.id}") for e in examples]
    ranked = sorted(positions)
    last = max([*ranked[:1], *(place for place in ranked[:MOST] if place < SHARE)], default=0.0)
    sides = list(zip(examples, positions, strict=True))
    return [e for e, place in sides if place > last], [e for e, place in sides if place <= last]


def grouped(examples: Sequence[Example]) -> list[Example]:
    """The examples with their groups, each named after its first example; a single example has none.

    A premise of MNLI occurs in three examples, a question of QQP in many; counted one by one, they make a difference
    look more certain than it is. A group given by the source stays. Other examples are grouped if they have a text in
    common, directly or through others; the choices of a multiple choice do not count.
    """
    # Checking the parameters imports the sources, and should not wait for scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    both = ([] if example.group else [example.a, example.b or ""] for example in examples)
    texts = [{text for text in some if len(words_of(text)) >= SHORTEST} for some in both]
    # Examples and texts are the nodes of a graph; what an example says is an edge.
    occurrences = Counter(text for some in texts for text in some)
    most = max(3.0, COMMON * len(texts))
    known = (text for text, count in occurrences.items() if count <= most)
    nodes = {text: len(texts) + i for i, text in enumerate(known)}
    edges = [(i, nodes[text]) for i, some in enumerate(texts) for text in some if text in nodes]
    rows, columns = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    size = len(texts) + len(nodes)
    graph = coo_array((np.ones(len(edges)), (rows, columns)), shape=(size, size))
    numbers = connected_components(graph, directed=False)[1][: len(texts)].tolist()
    sizes = Counter(numbers)
    firsts: dict[int, str] = {}
    found = []
    for example, number in zip(examples, numbers, strict=True):
        first = firsts.setdefault(number, example.id)
        found.append(example if example.group or sizes[number] == 1 else replace(example, group=first))
    return found


def shared(task: GlueTask, splits: Mapping[str, Sequence[Example]]) -> dict[str, int]:
    """The number of examples of test (and valid) whose exact texts are in train (or valid) too, whatever their labels,
    and of groups of test that are also in train.

    If the order of the two texts does not matter, a pair counts in either order.
    """
    texts = {split: {_texts(task, e) for e in examples} for split, examples in splits.items()}
    groups = {split: {e.group for e in examples if e.group} for split, examples in splits.items()}
    counted = {
        f"{split}_also_in_{other}": sum(_texts(task, e) in texts[other] for e in splits[split])
        for split, other in (("test", "train"), ("test", "valid"), ("valid", "train"))
    }
    return counted | {"test_groups_also_in_train": len(groups["test"] & groups["train"])}


def counts(task: GlueTask, split: str, examples: Iterable[Example]) -> dict[str, float | int]:
    """The examples of a split: how many, by subset, and what their kind counts."""
    examples = list(examples)
    found: dict[str, float | int] = {f"{split}_examples": len(examples)}
    subsets = Counter(e.subset for e in examples if e.subset)
    found |= {f"{split}_{subset}_examples": n for subset, n in subsets.items()}
    return found | {f"{split}_{name}": n for name, n in KINDS[task.kind].counts(task, examples).items()}


def _texts(task: GlueTask, example: Example) -> tuple[str, ...]:
    return tuple(sorted(example.texts)) if task.symmetric else example.texts
